"""spt entry import and export: entries travel as folders, repositories and bundles, and hostile ones stay out."""

import json
import shutil

import pytest

from spt.errors import Usage
from spt.git.compose import Composition
from spt.intake import admit, read_folders
from spt.memory import Memory
from tests.spt.toys import (
    card,
    commit_files,
    edit_and_write_back,
    errors_well,
    evidence_line,
    git,
    make_root,
    new,
    report,
    snapshot,
    spt,
    write,
    write_entry,
)


@pytest.fixture
def bare_stock(tmp_path, shipped):
    """A deployment repository of the toy's stock without any entry."""
    root = tmp_path / "stock-only"
    shutil.copytree(shipped, root, ignore=shutil.ignore_patterns("entries"))
    assert spt("init", tmp_path / "other", "--from", root, cwd=tmp_path).code == 0
    return tmp_path / "other"


def references(folder, *patterns):
    return git(folder, "for-each-ref", "--format=%(objectname) %(refname)", *patterns)


# Ways that entries travel.


def test_a_folder_of_entries_is_taken_in(bare_stock, pristine, shipped):
    """Imported folders have the very commits that `spt init` makes of them."""
    ran = spt("entry", "import", shipped / "entries", "--json", cwd=bare_stock)

    assert ran.json == {"fast-linear": "new", "tree-select": "new", "tuned": "new"}
    assert references(bare_stock, "refs/heads/entry", "refs/spt/patch") == references(
        pristine, "refs/heads/entry", "refs/spt/patch"
    )
    assert spt("entry", "import", shipped / "entries", "--json", cwd=bare_stock).json == dict.fromkeys(
        ran.json, "unchanged"
    )


def test_two_entries_of_one_name_are_refused(bare_stock, shipped):
    """Sources that bring one name twice are refused whole; a folder can bring a name under its own only."""
    files = read_folders(shipped / "entries")
    before = snapshot(bare_stock)
    with pytest.raises(Usage, match="two entries are named 'fast-linear'"):
        admit(Memory.open(bare_stock), [*files, files[0]])
    twin = bare_stock.parent / "twins"
    shutil.copytree(shipped / "entries" / "fast-linear", twin / "other")

    assert errors_well(spt("entry", "import", twin, cwd=bare_stock), 2, "'fast-linear' lies in folder 'other'")
    assert snapshot(bare_stock) == before


def test_admitting_is_linear(tmp_path):
    """Twice as many entries that change take about twice as long, each composing only what it requires."""

    def steps(number):
        root = make_root(tmp_path / str(number), entries=False)
        for at in range(number):
            files = {f"stock/select/s{at}.py": f"# {at}\n"}
            below = [f"e{at - 1:03d}"] if at % 5 else []
            write_entry(root, f"e{at:03d}", files, seams={"select": [f"s{at}"]}, requires=below)
        assert spt("init", root / "made", "--from", root, cwd=root).code == 0
        write(root, {"kernels/mm.py": "# moved\n"})
        added = []
        counting = Composition.add
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Composition, "add", lambda self, part: (added.append(part), counting(self, part))[1])
            assert spt("init", root / "made", "--from", root, cwd=root).code == 0
        return len(added)

    assert steps(40) <= 2.2 * steps(20)


@pytest.mark.parametrize("source", ["nowhere", "./nowhere/entries", "/nowhere.bundle"])
def test_a_source_that_is_not_there_is_missing(bare_stock, source):
    """A path that does not exist is said to be that: exit 4, as for an entry that is not in a source."""
    assert errors_well(spt("entry", "import", source, cwd=bare_stock), 4, f"'{source}' does not exist")


@pytest.mark.parametrize("form", ["entries", "deployment"])
def test_an_entry_that_a_source_lacks_is_missing(bare_stock, shipped, pristine, form):
    """The same answer from a folder and from a repository: exit 4."""
    source = shipped / "entries" if form == "entries" else pristine

    assert errors_well(spt("entry", "import", source, "nobody", cwd=bare_stock), 4, "holds no entry 'nobody'")


def test_one_entry_needs_what_it_requires(bare_stock, shipped):
    """A single folder is taken in where its requirements are there, else exit 4."""
    refused = spt("entry", "import", shipped / "entries/tuned", cwd=bare_stock)
    first = spt("entry", "import", shipped / "entries/fast-linear", cwd=bare_stock)
    second = spt("entry", "import", shipped / "entries", "tuned", cwd=bare_stock)

    assert errors_well(refused, 4, "'fast-linear'")
    assert (first.code, second.code) == (0, 0)
    assert "entry/tree-select" not in references(bare_stock)


@pytest.mark.parametrize("form", ["repository", "bundle"])
def test_a_repository_or_bundle_is_taken_in(bare_stock, pristine, form):
    """Branches of another repository become the same commits here."""
    source = pristine
    if form == "bundle":
        source = bare_stock.parent / "entries.bundle"
        git(pristine, "bundle", "create", "-q", source, "--all")
    ran = spt("entry", "import", source, cwd=bare_stock)

    assert ran.code == 0, ran.err
    assert references(bare_stock, "refs/heads/entry", "refs/spt/patch") == references(
        pristine, "refs/heads/entry", "refs/spt/patch"
    )
    assert git(bare_stock, "fsck", "--strict", "--no-dangling") == ""


def test_a_branch_made_with_other_tools_is_rebuilt(bare_stock, deployment):
    """Whoever committed it and whenever, an entry's commits here are the ones that its card describes."""
    expected = references(deployment, "refs/heads/entry/tuned", "refs/spt/patch/tuned")
    work = deployment.parent / "work"
    git(deployment, "worktree", "add", "-q", "--detach", work, "entry/tuned~2")
    for revision in ("entry/tuned~1", "entry/tuned"):
        git(work, "cherry-pick", revision, GIT_COMMITTER_NAME="Someone Else")
    git(deployment, "update-ref", "refs/heads/entry/tuned", git(work, "rev-parse", "HEAD"))

    assert spt("entry", "import", deployment, cwd=bare_stock).code == 0
    assert references(bare_stock, "refs/heads/entry/tuned", "refs/spt/patch/tuned") == expected


def test_export_writes_the_folder_it_came_from(deployment, shipped, tmp_path):
    """Folder to repository to folder is the identity, byte for byte, and the lock has a line for each."""
    (tmp_path / "out").mkdir()
    for name in ("fast-linear", "tree-select", "tuned"):
        assert spt("entry", "export", name, "--to", tmp_path / "out", cwd=deployment).code == 0
    files = {
        path.relative_to(tmp_path / "out"): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    before = {
        path.relative_to(shipped / "entries"): path.read_bytes()
        for path in (shipped / "entries").rglob("*")
        if path.is_file()
    }
    lock = [
        json.loads(line)["name"]
        for line in files.pop(next(path for path in files if path.name == "lock.jsonl")).splitlines()
    ]

    assert files == before
    assert lock == ["fast-linear", "tree-select", "tuned"]


def test_export_never_clears_a_folder_that_is_no_entrys(deployment, tmp_path):
    """A folder that happens to have the entry's name, or a link in its place, is someone's: nothing in it changes."""
    write(tmp_path, {"tuned/notes.txt": "precious\n", "elsewhere/notes.txt": "precious\n"})
    (tmp_path / "fast-linear").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "tree-select").mkdir()
    before = snapshot(tmp_path)

    foreign = spt("entry", "export", "tuned", "--to", tmp_path, cwd=deployment)
    linked = spt("entry", "export", "fast-linear", "--to", tmp_path, cwd=deployment)

    assert errors_well(foreign, 2, "holds 'notes.txt' and is no entry")
    assert errors_well(linked, 2, "is a link")
    assert snapshot(tmp_path) == before
    assert spt("entry", "export", "tree-select", "--to", tmp_path, cwd=deployment).code == 0


def test_export_keeps_lines_and_drops_files(deployment, tmp_path):
    """Evidence that only the folder has is kept; a file that the entry no longer has is removed."""
    out = tmp_path / "out"
    out.mkdir()
    spt("entry", "export", "tuned", "--to", out, cwd=deployment)
    write(
        out / "tuned",
        {"evidence/2026-01-02-toy.jsonl": evidence_line(deployment, "tuned"), "tree/checks/tuned/old.py": "x\n"},
    )
    spt("entry", "export", "tuned", "--to", out, cwd=deployment)

    assert (out / "tuned/evidence/2026-01-02-toy.jsonl").exists()
    assert not (out / "tuned/tree/checks/tuned/old.py").exists()


# Sources travel with entries.


@pytest.fixture
def released(distilled, shipped, tmp_path):
    """Shipped files with two distilled entries and the bundle of their source."""
    root = tmp_path / "released"
    shutil.copytree(shipped, root)
    for name in ("alpha", "beta"):
        assert spt("entry", "export", name, "--to", root / "entries", cwd=distilled).code == 0
    return root


def test_sources_are_verified_where_they_were_never_made(released, tmp_path):
    """A fresh repository from shipped files alone recomposes the source system: all of its history came along."""
    (bundle,) = (released / "entries/sources").glob("*.bundle")
    assert spt("init", "fresh", "--from", released, cwd=tmp_path).code == 0
    fresh = tmp_path / "fresh"

    assert [report(fresh, name)[0] for name in ("alpha", "beta")] == [0, 0]
    assert git(fresh, "log", "--format=%s", f"refs/spt/source/{bundle.stem.split('-')[1]}").splitlines() == [
        "beta: the other half",
        "alpha: second half",
        "beta: new files",
        "alpha: first half",
        git(fresh, "rev-parse", "refs/spt/stock/current^{tree}"),
    ]
    assert bundle.stat().st_size < 16384


def test_sources_outlive_the_stock_they_were_made_on(released, tmp_path):
    """After stock moved and entries were refreshed, the old source still recomposes from its own deltas."""
    git(released, "init", "-q")
    git(released, "add", "-A")
    git(released, "commit", "-q", "-m", "released")
    write(released, {"stock/engine.py": "first\n" + (released / "stock/engine.py").read_text()})
    assert spt("entry", "refresh", "--all", cwd=released).code == 0
    assert spt("init", "fresh", "--from", released, cwd=tmp_path).code == 0
    code, found = report(tmp_path / "fresh", "beta")

    assert (code, found["source"]["answer"]) == (0, "ok")
    assert git(tmp_path / "fresh", "show", "entry/beta:stock/engine.py").startswith("first\n")


@pytest.mark.parametrize("how", ["flag", "gone"])
def test_without_the_bundle_a_source_is_unavailable(released, tmp_path, how):
    """Left out or missing, the source is exit 4, never ok."""
    if how == "gone":
        shutil.rmtree(released / "entries/sources")
    flags = ["--no-sources"] if how == "flag" else []
    assert spt("init", "fresh", "--from", released, *flags, cwd=tmp_path).code == 0
    code, found = report(tmp_path / "fresh", "alpha")

    assert (code, found["recompose"]["answer"], found["source"]["answer"]) == (4, "ok", "unavailable here")


def test_a_damaged_bundle_is_refused(released, tmp_path):
    """A bundle with a flipped byte stops the command before anything is made."""
    (bundle,) = (released / "entries/sources").glob("*.bundle")
    data = bytearray(bundle.read_bytes())
    data[-40] ^= 1
    bundle.write_bytes(data)
    ran = spt("init", "fresh", "--from", released, cwd=tmp_path)

    assert ran.code != 0
    assert bundle.name in ran.err
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize(
    ("old", "new_name", "word"),
    [
        ("refs/spt/source/", "refs/spt/source/000000000000", "another system"),
        ("refs/spt/stock/", "refs/spt/stock/000000000000", "no stock commit"),
        ("refs/spt/patch/beta/", "refs/spt/patch/alpha/000000000000", "the delta of another entry"),
    ],
)
def test_a_bundle_that_lies_about_its_content_is_refused(released, tmp_path, old, new_name, word):
    """Every reference of a bundle must hold what its name says."""
    (bundle,) = (released / "entries/sources").glob("*.bundle")
    git(tmp_path, "clone", "-q", "--mirror", bundle, "mirror")
    (name, *_) = git(tmp_path / "mirror", "for-each-ref", "--format=%(refname)", old).splitlines()
    git(tmp_path / "mirror", "update-ref", new_name, name)
    git(tmp_path / "mirror", "update-ref", "-d", name)
    bundle.unlink()
    git(tmp_path / "mirror", "bundle", "create", "-q", bundle, "--all")

    assert errors_well(spt("init", "fresh", "--from", released, cwd=tmp_path), 2, word)
    assert not (tmp_path / "fresh").exists()


def test_a_bundle_grows_when_its_system_gives_another_entry(deployment, system, tmp_path):
    """Exporting a later entry of a system adds its delta to the bundle that an earlier one wrote."""
    out = tmp_path / "out"
    out.mkdir()
    new(deployment, "alpha", system["a1"], system["a2"], extra=["--partial"])
    spt("entry", "export", "alpha", "--to", out, cwd=deployment)
    (bundle,) = (out / "sources").iterdir()
    first = git(out, "bundle", "list-heads", bundle)
    new(deployment, "beta", system["b1"], system["b2"])
    spt("entry", "export", "beta", "--to", out, cwd=deployment)
    second = git(out, "bundle", "list-heads", bundle)

    assert "refs/spt/patch/beta/" not in first
    assert set(first.splitlines()) < set(second.splitlines())
    assert "refs/spt/patch/beta/" in second


@pytest.mark.parametrize("name", ["sources", "lock.jsonl", "a.", "con", "aux.x", "a..b", "x.lock"])
def test_names_that_mean_something_else_are_refused(deployment, tmp_path, name):
    """No entry can take the place of the lock or of the sources, nor a name that git or a file system refuses."""
    folder = write_entry(tmp_path, name, {"kernels/x.py": "x\n"})
    before = snapshot(deployment)

    assert errors_well(spt("entry", "import", folder, cwd=deployment), 2, f"'{name}'")
    assert snapshot(deployment) == before


@pytest.mark.parametrize(
    ("branch", "arguments"),
    [
        ("entry", ["import", "{shipped}/entries"]),
        ("entry/tuned/mine", ["import", "{shipped}/entries"]),
        ("side", ["apply", "tree-select", "--branch", "side/x"]),
        ("side/x", ["apply", "tree-select", "--branch", "side"]),
    ],
)
def test_a_branch_in_the_way_is_named(bare_stock, shipped, branch, arguments):
    """A reference cannot be a folder too: what stands there is named, and not even a pin is written."""
    if arguments[0] == "apply":
        spt("entry", "import", shipped / "entries", cwd=bare_stock)
    git(bare_stock, "branch", branch)
    before = snapshot(bare_stock)
    words = [word.format(shipped=shipped) for word in arguments]

    assert errors_well(spt("entry", *words, cwd=bare_stock), 2, f"'refs/heads/{branch}' is in the way of")
    assert snapshot(bare_stock) == before


# Hostile entries.


def raw_tree(folder, *entries):
    """A tree written as it is, whatever git thinks of it: (mode, name, id) triples."""
    data = b"".join(mode.encode() + b" " + name.encode() + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)
    return git(folder, "hash-object", "-t", "tree", "-w", "--stdin", "--literally", stdin=data)


@pytest.fixture
def evil(deployment):
    """A function that makes a repository with one entry branch, `evil`, whose P has the stock's tree and `entries`."""

    def make(*entries, name="evil", text=None):
        stock = git(deployment, "rev-parse", "refs/spt/stock/current")
        listed = [line.split(None, 3) for line in git(deployment, "ls-tree", stock).splitlines()]
        base = [(mode.lstrip("0"), path, oid) for mode, _, oid, path in listed]
        tree = raw_tree(deployment, *sorted([*base, *entries], key=lambda entry: entry[1]))
        patch = git(deployment, "commit-tree", tree, "-p", stock, "-m", "evil")
        record = git(deployment, "hash-object", "-w", "--stdin", stdin=(text or card(name)).encode())
        for folder in ("entry.yaml", name, "entries"):
            mode = "100644" if folder == "entry.yaml" else "40000"
            record = raw_tree(deployment, (mode, folder, record))
        whole = raw_tree(deployment, ("40000", ".spt", record), *sorted([*base, *entries], key=lambda entry: entry[1]))
        tip = git(deployment, "commit-tree", whole, "-p", patch, "-m", "records")
        for reference in git(
            deployment, "for-each-ref", "--format=%(refname)", "refs/heads/entry", "refs/spt/patch"
        ).splitlines():
            git(deployment, "update-ref", "-d", reference)
        git(deployment, "update-ref", f"refs/heads/entry/{name}", tip)
        return deployment

    return make


def blob_of(folder, data=b"x\n"):
    return git(folder, "hash-object", "-w", "--stdin", stdin=data)


@pytest.mark.parametrize(
    "name",
    [".git", ".GIT", "git~1", "..", ".", "a/b", ".g\u200cit"],
    ids=["git", "upper", "ntfs", "dots", "dot", "slash", "hfs"],
)
def test_trees_with_forbidden_names_are_refused(deployment, evil, bare_stock, name):
    """Names that would leave the folder, or reach git's own files, never get in."""
    repository = evil(("100644", name, blob_of(deployment)))
    before = snapshot(bare_stock)
    ran = spt("entry", "import", repository, cwd=bare_stock)

    assert errors_well(ran, 2)
    assert snapshot(bare_stock) == before


def test_trees_with_a_name_twice_are_refused(deployment, evil, bare_stock):
    """A tree that means two things means nothing."""
    repository = evil(("100644", "stock", blob_of(deployment)))

    assert errors_well(spt("entry", "import", repository, cwd=bare_stock), 2)


def test_git_modules_as_a_link_are_refused(deployment, evil, bare_stock):
    """A link that git would read settings through never gets in."""
    repository = evil(("120000", ".gitmodules", blob_of(deployment, b"/etc/passwd")))

    assert errors_well(spt("entry", "import", repository, cwd=bare_stock), 2)


def raw_records(folder, name, *entries):
    """An entry's branch in its own repository whose records are `entries`, as a plain `git fetch` may bring it."""
    card_blob = git(folder, "rev-parse", f"entry/{name}:.spt/entries/{name}/entry.yaml")
    record = raw_tree(folder, *sorted([("100644", "entry.yaml", card_blob), *entries], key=lambda entry: entry[1]))
    for part in (name, "entries"):
        record = raw_tree(folder, ("40000", part, record))
    patch = git(folder, "rev-parse", f"entry/{name}~1")
    code = [line.split(None, 3) for line in git(folder, "ls-tree", patch).splitlines()]
    whole = raw_tree(folder, ("40000", ".spt", record), *((mode.lstrip("0"), path, oid) for mode, _, oid, path in code))
    git(folder, "update-ref", f"refs/heads/entry/{name}", git(folder, "commit-tree", whole, "-p", patch, "-m", "bad"))


@pytest.mark.parametrize("steps", [["..", "..", "evidence"], ["evidence", "..", "..", "outside"], [".git", "hooks"]])
def test_records_that_lead_outside_are_never_written(deployment, tmp_path, steps):
    """What came by plain `git fetch` was checked by nobody: no path of it leaves the folder of its entry."""
    (tmp_path / "to").mkdir()
    oid, mode = blob_of(deployment), "100644"
    for step in reversed(steps[1:]):
        oid, mode = raw_tree(deployment, (mode, step, oid)), "40000"
    raw_records(deployment, "tuned", (mode, steps[0], oid))
    before = snapshot(tmp_path / "to")

    assert errors_well(spt("entry", "export", "tuned", "--to", tmp_path / "to", cwd=deployment), 2, "is not allowed")
    assert snapshot(tmp_path / "to") == before
    assert spt("entry", "verify", "tuned", cwd=deployment).code == 1


@pytest.mark.parametrize("depth", [300, 1500])
def test_trees_without_end_are_refused(deployment, evil, bare_stock, depth):
    """A path of very many folders is one line, wherever it stands: no tower of calls falls over it."""
    index = {"GIT_INDEX_FILE": str(bare_stock.parent / "index")}
    git(deployment, "update-index", "--add", "--cacheinfo", f"100644,{blob_of(deployment)},{'d/' * depth}x", **index)
    source = evil(("40000", "checks", git(deployment, "write-tree", **index)))

    for arguments in (["import", source], ["list"], ["verify", "--all"]):
        ran = spt("entry", *arguments, cwd=bare_stock if arguments[0] == "import" else source)
        assert "Traceback" not in ran.err
        assert len(ran.err.splitlines()) <= 2
    assert references(bare_stock, "refs/heads/entry") == ""

    git(deployment, "branch", "deep", "entry/evil~1")
    assert spt("export", "rev:deep", "out", cwd=deployment).code == 5
    assert not (deployment / "out").exists()


def test_links_are_no_part_of_a_system_tree(deployment, evil, bare_stock):
    """The shipped system tree holds plain files only."""
    checks = raw_tree(deployment, ("120000", "s.py", blob_of(deployment, b"/etc/passwd")))
    repository = evil(("40000", "checks", raw_tree(deployment, ("40000", "evil", checks))))

    assert errors_well(spt("entry", "import", repository, cwd=bare_stock), 1, "not the delta that its commit names")


def test_a_huge_blob_is_never_inflated(deployment, evil, bare_stock):
    """A blob that is small on the wire and huge in memory is refused by its header."""
    checks = raw_tree(deployment, ("100644", "zeros.py", blob_of(deployment, bytes(64 * 2**20))))
    repository = evil(("40000", "checks", raw_tree(deployment, ("40000", "evil", checks))))

    assert errors_well(spt("entry", "import", repository, cwd=bare_stock), 2, "67108864 bytes")


@pytest.mark.parametrize("name", ["-x", "UPPER", "x" * 65, "a@b"])
def test_branch_names_outside_the_grammar_are_refused(deployment, bare_stock, name):
    """A branch below entry/ whose name is no entry's name is not taken in."""
    git(deployment, "update-ref", f"refs/heads/entry/{name}", "main")

    assert errors_well(spt("entry", "import", deployment, cwd=bare_stock), 2, "cannot be a name")


def test_an_entry_under_anothers_name_is_refused(evil, bare_stock):
    """Branch, folder and card must agree on the name."""
    repository = evil(("40000", "checks", git(bare_stock, "write-tree")), text=card("tuned"))

    assert errors_well(spt("entry", "import", repository, cwd=bare_stock), 2, "holds an entry named 'tuned'")


@pytest.mark.parametrize("source", ["nowhere", "https://invalid.invalid/x.git", "ext::sh -c touch% /tmp/pwned"])
def test_what_cannot_be_fetched_is_named(bare_stock, source):
    """A source that is not there, or a transport that runs commands, is an error in one line."""
    ran = spt("entry", "import", source, cwd=bare_stock)

    assert ran.code in (2, 4)
    assert errors_well(ran, ran.code, source.split(" ")[0])


def test_a_repository_without_entries_is_named(bare_stock, tmp_path):
    """There is nothing to take from a repository that holds no entry."""
    git(tmp_path, "init", "-q", "empty")

    assert errors_well(spt("entry", "import", tmp_path / "empty", cwd=bare_stock), 4, "holds no entry")


def test_an_entry_of_another_stock_is_a_conflict(tmp_path, bare_stock):
    """An entry made from other files than this stock's is refused, not merged."""
    root = make_root(tmp_path / "root", entries=False)
    write(root, {"stock/engine.py": "another\n"})
    write_entry(root, "e", None, {"stock/engine.py": ("another\n", "changed\n")})
    spt("init", tmp_path / "d", "--from", root, cwd=tmp_path)

    assert errors_well(spt("entry", "import", tmp_path / "d", cwd=bare_stock), 3, "'stock/engine.py'")


@pytest.mark.parametrize("path", ["deployment.yaml", "sub/Deployment.YAML", ".SPT/x"])
def test_no_entry_says_what_is_run(tmp_path, path):
    """In a repository of any layout an entry brings neither a deployment file nor records in disguise."""
    folder = tmp_path / "own"
    git(tmp_path, "init", "-q", "own")
    commit_files(folder, {"a.c": "x\n"})
    spt("init", "--stock", "HEAD", cwd=folder)
    before = snapshot(folder)

    ran = spt("entry", "import", write_entry(tmp_path, "evil", {path: "x\n"}), cwd=folder)

    assert errors_well(ran, 2, f"'{path}'")
    assert snapshot(folder) == before


def test_what_a_reviewer_must_see_is_said(tmp_path):
    """In any repository an entry may touch files that other tools act on; import and show say so."""
    folder = tmp_path / "mine"
    git(tmp_path, "init", "-q", "-b", "trunk", "mine")
    base = commit_files(folder, {"src/a.py": "a\n"})
    spt("init", ".", "--stock", base, cwd=folder)
    git(folder, "switch", "-q", "-c", "work")
    (folder / "link").symlink_to("src/a.py")
    commit = commit_files(
        folder, {".gitattributes": "* text\n", ".github/workflows/x.yml": "on: push\n", "conftest.py": "x\n"}
    )
    assert new(folder, "loud", commit, system="work").code == 0

    review = spt("entry", "show", "loud", "--json", cwd=folder).json["review"]
    assert review == [
        "touches '.gitattributes', which other tools act on",
        "touches '.github/workflows/x.yml', which other tools act on",
        "touches 'conftest.py', which other tools act on",
        "makes 'link' a link",
    ]


def test_an_imported_entry_replaces_and_rescues(deployment, bare_stock, shipped):
    """Importing a newer form of an entry moves its branch and keeps the old tip."""
    spt("entry", "import", shipped / "entries", cwd=bare_stock)
    old = git(bare_stock, "rev-parse", "entry/tree-select")
    edit_and_write_back(deployment, "tree-select", {"stock/select/best.py": "# better\n"})
    ran = spt("entry", "import", deployment, "tree-select", "--json", cwd=bare_stock)

    assert ran.json == {"tree-select": "changed"}
    assert git(bare_stock, "rev-parse", "entry/tree-select") == git(deployment, "rev-parse", "entry/tree-select")
    assert git(bare_stock, "rev-parse", f"refs/spt/rescue/tree-select/{old[:12]}") == old
