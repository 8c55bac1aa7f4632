"""spt.campaign: folders of campaigns appear whole, and what a killed maker left goes."""

import os
import subprocess

from spt.campaign import appear, sweep_parts


def made(folder):
    folder.mkdir()
    (folder / "job.json").write_text("{}")


def test_half_made_folders_of_dead_makers_go_and_those_of_living_ones_stay(tmp_path):
    """Who makes a folder removes what killed makers left beside it, and nothing that somebody is still making."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f".new-{dead.pid}-a", ".new-old", f".new-{os.getpid()}-b", "other"):
        (tmp_path / name / "folder").mkdir(parents=True)

    appear(tmp_path / "job", made)

    assert sorted(path.name for path in tmp_path.iterdir()) == [f".new-{os.getpid()}-b", "job", "other"]
    sweep_parts(tmp_path / "nowhere")
