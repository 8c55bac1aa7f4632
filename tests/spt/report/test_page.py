"""The page: safe whatever it shows, small, for everyone, and with no number that is not in its sources."""

import functools
import gzip
import html
import itertools
import json
import math
import re
import shutil
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spt.git.store import Store
from spt.report.charts import waterfall
from spt.report.events import read_round
from spt.report.page import make_page
from spt.report.story import FACTORS, Ceiling, Source
from spt.report.telling import tell
from spt.verdicts import Ledger
from tests.spt.report.journals import (
    HOSTILE,
    NOTHING,
    Events,
    Maker,
    commits,
    events_of,
    make_repository,
    write_journal,
)
from tests.spt.report.pages import parse
from tests.spt.toys import git, spt

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MOST_BYTES = 800_000


@pytest.fixture(scope="session")
def root(page):
    return parse(page)


# --- safe ---


def test_hostile_text_is_text(page, root):
    """What agents wrote makes no element, no attribute and no address, and does not steer a reader's eyes."""
    tags = {node.tag for node in root.walk()}
    known = "html head meta title style body header h1 nav ul li a main section h2 p em bdi div figure figcaption table"
    known += " caption span thead tr th tbody td dl dt dd small code h3 br details summary strong footer root svg g"
    known += " path text defs use rect pattern clipPath clippath"

    assert tags <= set(known.split())
    assert not CONTROL.search(page)
    names = {name for node in root.walk() for name in node.attributes}
    assert not [name for name in names if name.startswith("on")]
    texts = root.text
    assert "<script>alert('owned')</script>" in texts
    assert "\\x1b[31mred\\x1b[0m" in texts
    assert "right to left \\u202egnirts\\u202c" in texts
    assert "{{ 7 * 7 }} {% for x in y %}" in texts
    assert "(4,760 more characters)" in texts


def test_nothing_is_fetched(page, root):
    """No script, no address outside, no style from elsewhere; the browser is told to hold the page to that."""
    addresses = [node.attributes[name] for node in root.walk() for name in ("href", "src") if name in node.attributes]
    [policy] = root.find("meta", http_equiv="Content-Security-Policy") or [
        node for node in root.find("meta") if node.attributes.get("http-equiv") == "Content-Security-Policy"
    ]

    assert not root.find("script")
    assert addresses
    assert not [address for address in addresses if not address.startswith("#") and ":" in address]
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    style = root.find("style")[0].text
    assert "@import" not in style and "url(" not in style
    assert not re.search(r"url\((?!#)", page)


def test_every_name_a_reader_sees_is_cut(repository):
    """Names of directions, gates, agents, options and entries may be as long and as odd as texts."""
    events = Events("odd")
    events.add("measure", "begun", {"deployment": HOSTILE[3], "start": NOTHING, "agents": list(HOSTILE)})
    for number, text in enumerate(HOSTILE):
        name = f"{text}{number}"
        events.add("explore", "direction", {"title": text, "agent": text, "hypothesis": text}, name)
        events.add("explore", "gate", {"gate": text, "passed": False, "reason": text}, name)
        events.add("explore", "declined", {"gate": text, "reason": text, "rescue": text}, name)
        system = {"tree": "b" * 40, "options": {text: text}}
        promoted = {"system": system, "commit": text, "kind": text, "rule": text, "gain": 1.01}
        events.add("tune", "promoted", promoted, name)
        events.add("distil", "entry", {"name": text, "delta": text, "discovery": True, "promoted": text})
        events.add("distil", "residual", {"commits": [text]})
        events.add("tune", "phase", {"state": text, "reason": text})
        events.add("tune", "stopped", {"reason": text})
        events.add("measure", "measured", {"folder": text, "tau": 2.0, "step_us": 5.0})
    events.add("final", "final", {"key": None, "verdict": HOSTILE[0], "against_stock": {"gain": 1.2}})
    events.add("report", "deployment", {"path": HOSTILE[5], "system": system, "branch": HOSTILE[3]})
    events.add("report", "ended", {"outcome": HOSTILE[6]})
    write_journal(repository, events.rows)

    ran = spt("report", "odd", cwd=repository)
    assert ran.code == 0, ran.err
    assert not CONTROL.search(ran.out.replace("\n", ""))
    text = (repository / ".git/spt/rounds/odd/report.html").read_text()
    assert len(text) < 300_000
    assert not CONTROL.search(text)
    assert not parse(text).find("script") and not parse(text).find("img")
    assert "a" * 241 not in text


def shape(text):
    """The elements of a page in order."""
    return [(node.tag, sorted(node.attributes)) for node in parse(text).walk() if node.tag not in ("g", "path", "text")]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A page as a function of one text that stands wherever an agent may put one."""
    folder = make_repository(tmp_path_factory.mktemp("told") / "repository")
    events = Events("one")
    events.add("measure", "begun", {"deployment": "toy", "start": NOTHING, "agents": ["a"]})
    events.add("explore", "direction", {"title": "@@", "agent": "@@", "hypothesis": "@@"}, "one")
    events.add("explore", "gate", {"gate": "scope", "passed": False, "reason": "@@"}, "one")
    events.add("explore", "declined", {"gate": "@@", "reason": "@@", "rescue": "@@"}, "one")
    write_journal(folder, events.rows)
    ledger = Ledger(Store.find(folder))

    @functools.cache
    def page_of(text):
        read = read_round(ledger.store, "one")
        for each in read.told:
            each.data.values.update({key: text for key, value in each.event.data.items() if value == "@@"})
        return make_page([tell(read, ledger)], ledger, None, folder)

    return page_of


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(min_size=1, max_size=60))
def test_no_text_changes_the_shape_of_a_page(told, text):
    """Whatever is written, the page has the same elements and attributes, and no character that steers."""
    made = told(text)

    assert shape(made) == shape(told("plain"))
    assert not CONTROL.search(made)


# --- small ---


def test_a_page_is_well_under_a_megabyte(page):
    """Three rounds of 60 directions with pictures, and a fourth."""
    assert len(page.encode()) < MOST_BYTES


def test_a_page_stays_small_whatever_was_tried(tmp_path):
    """Three hundred directions in twenty rounds: what has no room is counted, and what was promoted is shown."""
    folder = make_repository(tmp_path / "repository")
    made = Maker(folder)
    for number in range(20):
        made.make(f"many-{number:02d}", tried=15, promoted=2)
    ran = spt("report", "--out", tmp_path / "many.html", cwd=folder)
    text = (tmp_path / "many.html").read_text()
    root = parse(text)

    assert ran.code == 0, ran.err
    assert len(text.encode()) < 950_000
    assert "more directions, none of them promoted" in root.text
    assert "are left out, so that the page stays small" in root.text
    shown = [node for node in root.find("td") if node.text == "promoted" and "good" in node.classes()]
    assert len(shown) == 60  # two and the whole of each round


# --- for everyone ---


def test_the_page_says_what_it_is(root):
    """Language, title, one first heading, headings in order, and a name for each region, table and picture."""
    [document] = root.find("html")
    levels = [int(node.tag[1]) for node in root.walk() if re.fullmatch("h[1-6]", node.tag)]

    assert document.attributes["lang"] == "en"
    assert root.find("title")[0].text.startswith("spt report: ")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    pictures, regions = root.find("svg"), root.find("div", role="region")
    assert len(pictures) > 20
    assert all(node.attributes["role"] == "img" and len(node.attributes["aria-label"]) > 30 for node in pictures)
    assert all(node.attributes["aria-label"] and node.attributes["tabindex"] == "0" for node in regions)
    assert all(node.attributes.get("scope") in ("col", "row") for node in root.find("th"))
    assert all(len(node.find("figcaption")) == 1 for node in root.find("figure"))


def test_ids_are_unique_and_links_lead_somewhere(root):
    """No id stands twice, and each link within the page, those of pictures too, finds its own."""
    ids = [node.attributes["id"] for node in root.walk() if "id" in node.attributes]
    links = [node.attributes["href"] for node in root.walk() if node.attributes.get("href", "").startswith("#")]
    clips = re.findall(r"url\(#([^)]+)\)", " ".join(str(node.attributes) for node in root.walk()))

    assert len(ids) == len(set(ids))
    assert links and {link[1:] for link in links} <= set(ids)
    assert clips and set(clips) <= set(ids)


def test_pictures_take_the_colours_of_the_page(page, root):
    """No colour is fixed in a picture, and the style has one of each for light and for dark."""
    pictures = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    style = root.find("style")[0].text
    light, _, dark = style.partition("prefers-color-scheme: dark")

    assert not re.search(r"#[0-9a-f]{6}\b(?!-)", re.sub(r'"#[^"]*"|url\(#[^)]*\)', "", pictures))
    used = set(re.findall(r"var\((--[a-z0-9]+)\)", pictures))
    assert used == {"--ink", "--c1", "--c2", "--c3", "--soft"}
    assert all(f"{name}: #" in light and f"{name}: #" in dark for name in used)


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


FACTOR = st.floats(0.01, 1000)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(FACTOR, FACTOR, FACTOR), min_size=1, max_size=2))
@example([(700.0, 0.17, 1.0)])
def test_a_ceiling_below_a_measured_speed_is_drawn_whole(measured):
    """Whatever the factors are, above 1 or below, every bar and each of its words lie within the picture."""
    ceilings = [
        Ceiling("", 2.0, 1.0, dict(zip(FACTORS, factors, strict=True)), None, None, 1000.0, None, (), Source("r", ()))
        for factors in measured
    ]
    chart = waterfall("w", ceilings)
    box = [float(each) for each in re.search(r'viewBox="([^"]*)"', chart.svg)[1].split()]
    heights = [float(y) for y in re.findall(r'<text[^>]* y="([-0-9.]+)"', chart.svg)]
    assert heights and all(box[1] <= height <= box[1] + box[3] for height in heights)


def test_texts_and_lines_can_be_seen(root):
    """Text has a contrast of 4.5 with the page and with a card, lines of pictures one of 3, in light and in dark."""
    style = root.find("style")[0].text
    light, _, dark = style.partition("prefers-color-scheme: dark")
    for part in (light, dark):
        colours = dict(re.findall(r"(--[a-z0-9]+): (#[0-9a-f]{6})", part))
        for ground in ("--page", "--card"):
            for name, least in {**dict.fromkeys(("--ink", "--muted", "--link"), 4.5), "--c1": 3, "--c2": 3}.items():
                pair = sorted((luminance(colours[name]), luminance(colours[ground])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, (name, ground)
        for name in ("--good", "--bad", "--warn"):
            pair = sorted((luminance(colours[name]), luminance(colours["--page"])))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, name


# --- true ---


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def numbers_in(value):
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, dict):
        for each in value.values():
            yield from numbers_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each)


class Sources:
    """The numbers behind each link of a page, read from git and from the raw files, not from the report's own code."""

    def __init__(self, repository, root):
        self.repository = repository
        self.rows = {}
        for table in root.find("table"):
            heading = next(node for node in table.above() if node.tag == "section")
            if heading.attributes["aria-labelledby"] != "sources":
                continue
            region = table.parent.attributes["aria-label"].removeprefix("Sources of ")
            for row in table.find("tr")[1:]:
                self.rows[row.attributes["id"]] = (region, row)
        self.events = functools.cache(lambda name: events_of(repository, name))
        self.verdict = functools.cache(lambda name: json.loads(git(repository, "show", name)))
        self.pool = functools.cache(self._pool)

    def _pool(self, id_):
        """(numbers of the source, those that follow from them)."""
        round_, row = self.rows[id_]
        cells = [node for node in row.children if not isinstance(node, str)]
        seqs = []
        for part in cells[0].text.split(", "):
            low, _, high = part.partition("-")
            seqs += range(int(low), int(high or low) + 1)
        data = [self.events(round_)[seq]["data"] for seq in seqs]
        found = [*seqs, *numbers_in(data)]
        for one in data:
            if "step_us" in one:
                found += [1e6 * one["tau"] / one["step_us"], math.prod(one["factors"].values())]
                found.append(sum(one["floors_us"].values()))
        if len(data) > 1:  # a computed number: the sum of each key, or the product of gains
            for key in {key for one in data for key in one}:
                parts = [one[key] for one in data if isinstance(one.get(key), int | float)]
                found += [sum(parts), math.prod(parts) if len(parts) < 40 else 0.0]
        for code in cells[3].find("code"):
            found += numbers_in(self.verdict(code.text.removeprefix("git show ")))
        return found


def is_written(text, pool):
    """Whether what is written is a number of the pool: as it is, as a share, in points, or as a time."""
    if found := re.fullmatch(r"(?:([\d,]+) h )?(\d+) min", text):
        minutes = 60 * int((found[1] or "0").replace(",", "")) + int(found[2])
        return any(abs(value / 60 - minutes) <= 0.51 for value in pool)
    for word in NUMBER.findall(text):
        value, digits = float(word.replace(",", "")), len(word.partition(".")[2])
        room = 0.5 * 10.0**-digits + 1e-9
        scales = (1.0, 100.0) if "%" in text or "(" in text else (1.0,)
        if not any(abs(scale * each - value) <= room for each in pool for scale in scales):
            return False
    return True


def test_every_number_is_in_its_source(three, root):
    """Each number leads to events and a verdict that hold it, or from which it is summed or multiplied."""
    sources = Sources(three, root)
    curves = {id(node) for node in root.find("tbody") if "-curves" in (node.parent.attributes.get("id") or "")}
    wrong, seen = [], 0
    for link in root.find("a"):
        if "n" not in link.classes() or "rows" in link.classes() or any(id(one) in curves for one in link.above()):
            continue
        row, named = link.attributes["href"][1:], link.parent.tag == "th"  # a name has perhaps a digit in it
        if row not in sources.rows or not (named or NUMBER.search(link.text)):
            wrong.append((link.text, "no source"))
        elif not named and not is_written(link.text, sources.pool(row)):
            wrong.append((link.text, sources.rows[row][1].text))
        seen += 1

    assert wrong == []
    assert seen > 1000


def test_the_row_so_far_is_the_product_of_its_rounds(three, root):
    """Gains over several rounds multiply what their promotions say."""
    expected, total = {}, 1.0
    for name in ("smol-1", "smol-2", "smol-3"):
        [whole] = [row for row in events_of(three, name) if (row["event"], row["direction"]) == ("promoted", "whole")]
        total *= whole["data"]["gain"]
        expected[name] = f"raw ratio {total:.3f} over stock"
    rows = [node.find("td") for node in root.find("table", id="gains-table")[0].find("tr")[1:]]
    said = {row[0].parent.find("th")[0].text: row[3].text for row in rows}

    assert {name: said[name] for name in expected} == expected


def test_acceptance_is_counted_from_the_raw_file(three, root):
    """Each share of the table is that of the steps in the file that its row links to."""
    folder = three / ".git/spt/reports"
    for name in ("r1-curves", "r3-curves"):
        [table] = root.find("table", id=name)
        head = [int(node.text.removeprefix("≥ ")) for node in table.find("th") if node.text.startswith("≥")]
        for row in table.find("tbody")[0].find("tr"):
            arm = "a" if row.find("th")[0].text.split(", ")[1] in ("after", "system") else "b"
            cells = [node.text for node in row.find("td")]
            path = folder / row.find("a")[-1].attributes["href"]
            lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
            said = [line["lines"][1:] for line in lines if line["type"] == "answer" and line["arm"] == arm]
            steps = [count for one in said for count in one]
            expected = [
                f"{100 * sum(each >= k for each in steps) / len(steps):.2f} %" if k <= max(steps) else "-" for k in head
            ]
            assert cells[:2] == [f"{sum(steps) / len(steps):.2f}", str(len(steps))]
            assert cells[2:-1] == expected


# What stands in the words of the page itself and not in a journal.
WORDS = re.compile(
    r"1\.230 is 23 %|the limit is 0\.5|after 3 rounds|published: [\d.]+ \(.*\)|(1\.34|2\.13) over the start after"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d UTC|≥ \d+|and \d+ more|[\d,]+ more (rows|directions)|^\d rounds$|\d+ gates"
    r"|(cost model|no cost model), \d+ agents?|utf-?8"
)


def test_no_number_stands_without_a_source(root):
    """Outside of links, names and commands, no digit is shown that is not a date or a word of the page itself."""
    left = []
    for node in root.walk():
        skipped = {"a", "bdi", "code", "svg", "style", "title", "nav", "summary"}
        if any(one.tag in skipped for one in node.above()):
            continue
        section = next((one for one in node.above() if one.tag == "section"), None)
        if section is not None and section.attributes["aria-labelledby"] == "sources":
            continue
        texts = [child for child in node.children if isinstance(child, str)]
        left += [text.strip() for text in texts if re.search(r"\d", WORDS.sub("", text.strip()))]

    assert [text for text in left if not re.fullmatch("d{12}", text)] == []


def test_links_resolve_to_what_is_there(three, page, root):
    """Each commit, each verdict and each raw file that the page names is there."""
    commands = {html.unescape(found) for found in re.findall(r"<code>git show ([^<]+)</code>", page)}
    objects = "".join(f"{command}\n" for command in sorted(commands)).encode()
    answers = git(three, "cat-file", "--batch-check", stdin=objects).splitlines()
    files = [node.attributes["href"] for node in root.find("a") if not node.attributes["href"].startswith("#")]

    assert len(commands) > 300
    assert not [line for line in answers if line.endswith(("missing", "ambiguous"))]
    assert {line.split()[1] for line in answers} == {"commit", "blob"}
    assert len(files) > 20
    assert all((three / ".git/spt/reports" / file).resolve().is_file() for file in files)


def test_an_event_is_what_its_commit_adds(three, root):
    """`git show` of a source's commit shows that event, and no other, as added."""
    sources = Sources(three, root)
    for round_, row in list(sources.rows.values())[::97]:
        cells = [node for node in row.children if not isinstance(node, str)]
        commit = cells[1].find("code")[0].text.removeprefix("git show ")
        added = [line[1:] for line in git(three, "show", commit, "--", "events.jsonl").split("\n") if line[:2] == "+{"]
        assert [json.loads(line)["seq"] for line in added] == [int(re.match(r"\d+", cells[0].text)[0])]
        assert json.loads(added[0])["round"] == round_


def test_the_same_rounds_make_the_same_page(copy):
    """Nothing of the moment is in a page, so that two can be compared."""
    made = []
    for _ in range(2):
        assert spt("report", "smol-1", "--out", "page.html", cwd=copy).code == 0
        made.append((copy / "page.html").read_bytes())
    assert made[0] == made[1]


# --- rounds that are not whole ---


def one_round(repository, *rows, name="part"):
    """The page of a round that begins and then has these events."""
    events = Events(name)
    events.add(
        "measure", "begun", {"deployment": "toy", "start": NOTHING, "stock": NOTHING["tree"], "agents": ["sweep"]}
    )
    for row in rows:
        events.add(*row)
    write_journal(repository, events.rows)
    ran = spt("report", name, cwd=repository)
    assert ran.code == 0, ran.err
    text = (repository / f".git/spt/rounds/{name}/report.html").read_text()
    return SimpleNamespace(root=parse(text), text=parse(text).text, out=ran.out)


def test_a_round_that_only_began(repository):
    """Every part says that there is nothing, and how the round goes on."""
    made = one_round(repository)

    for words in (
        "This round has not ended",
        "spt round resume part",
        "Nothing was promoted.",
        "There was no final.",
        "Nothing was tried.",
        "No entry was made.",
        "Nothing was measured against a ceiling.",
        "Nothing is residual.",
    ):
        assert words in made.text
    assert made.text.count("not reached") == 7
    assert len(made.root.find("svg")) == 1
    assert "not ended" in made.out


def test_an_interrupted_round(repository):
    """What was stopped and resumed is said, a direction without an end is open, and a skipped phase has its reason."""
    held = commits(repository, "part", ["one"])
    made = one_round(
        repository,
        ("explore", "direction", {"title": "half done", "agent": "claude", "predicted_gain": 1.07}, "one"),
        ("explore", "candidate", {"system": NOTHING, "commit": held["one"], "note": ""}, "one"),
        ("explore", "stopped", {"reason": "the time is up"}),
        ("explore", "resumed", {}),
        ("tune", "phase", {"state": "skipped", "reason": "no kernel is far from its floor"}),
    )

    assert "stopped: the time is up (event 3)" in made.text
    assert "resumed (event 4)" in made.text
    assert "skipped: no kernel is far from its floor" in made.text
    [table] = made.root.find("table", id="r0-tried")
    assert table.find("tr")[1].find("td")[3].text == "open"


def test_a_smoke_final_accepts_nothing(repository):
    """A smoke says so, and its figure is a raw ratio."""
    Maker(repository).make("small", tried=2, promoted=1, smoke=True)
    ran = spt("report", "small", cwd=repository)
    text = parse((repository / ".git/spt/rounds/small/report.html").read_text()).text

    assert "The final was a smoke: so few tokens can only reject" in text
    assert "sealed final: smoke; over stock raw ratio" in ran.out
    assert "over stock: raw ratio" in text


def test_raw_files_that_are_gone_are_said_to_be(copy):
    """Without the raw samples the page still stands, without links to them and without curves."""
    shutil.rmtree(copy / ".git/spt/raw")
    ran = spt("report", "smol-1", cwd=copy)
    root = parse((copy / ".git/spt/rounds/smol-1/report.html").read_text())

    assert ran.code == 0, ran.err
    assert "(not here)" in root.text
    assert "there is no acceptance curve" in root.text
    assert not [node for node in root.find("a") if not node.attributes["href"].startswith("#")]


def test_the_page_finds_raw_files_from_wherever_it_lies(three, tmp_path):
    """Links are relative to the folder that the page was written to."""
    (tmp_path / "deep er").mkdir()
    assert spt("report", "smol-1", "--out", tmp_path / "deep er/page.html", cwd=three).code == 0
    root = parse((tmp_path / "deep er/page.html").read_text())
    files = [node.attributes["href"] for node in root.find("a") if not node.attributes["href"].startswith("#")]

    assert files
    assert all((tmp_path / "deep er" / file).resolve().is_file() for file in files)
