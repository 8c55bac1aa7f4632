"""Puts the shipped data (system tree, harness, entries, drafter) into the wheel below `spt/data`.

The data is copied at build time, so that a checkout has one copy and the generic names `stock`, `kernels`
and `harness` never land in site-packages.  An editable install skips this: `spt/share.py` finds the checkout.
"""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithData(build_py):
    """build_py that also copies the shipped data."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            share = runpy.run_path(str(HERE / "spt" / "share.py"))
            share["copy_shipped"](HERE, Path(self.build_lib) / "spt" / "data")


setup(cmdclass={"build_py": BuildWithData})
