"""What was measured of one deployment: the folders of `spt measure`, and files of `benchmarks.speed`, by setting."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spt.cost import LEAST_STEP_US, MOST_STEP_US, Sample, Setting
from spt.curve import Kept, tau_of
from spt.errors import Missing, Usage
from spt.formats import check, read_file, read_json, read_jsonl, read_lines
from spt.policy import Policy, budget, running_policy
from spt.profile import STEP_PHASES, Profile, read_profile

__all__ = ["Measured", "Run", "Target", "read_measured"]

CONTEXT_BIN_TOK = 256  # steps of one setting whose contexts are alike are one sample
_PROFILE, _SUMMARY = "profile.jsonl", "measurement.json"
_CARD = ("power_cap_w", "driver", "torch", "cuda", "triton")  # what a time depends on, beside the device
_CPU = ("cpu", "cores")


@dataclass(frozen=True)
class Target:
    """Whose numbers these are: digests that must agree, widening, type and device.

    more: further facts that must agree with those of other sources which state them too: drafter, jitter, mode,
    sampling, card.
    """

    digest: str
    widen: int
    dtype: str
    gpu: str | None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """All that is stated, by name; the device always is."""
        named = {name: getattr(self, name) for name in ("digest", "widen", "dtype", "gpu")}
        return named | {name: value for name, value in self.more.items() if value is not None}


@dataclass(frozen=True)
class Run:
    """One setting.

    tau: tokens a step without loops, and `kept` the same by answer.  positions: drafted depths, 0 for all.
    policy: what ran, in the words of `spt walk`; None where that has none.
    step_us: wall clock a step of the live run.  phases_us: by phase, beside the clock; empty where nobody asked.
    date: when it was measured, in UTC, to the second; None where nobody says.
    folder: where lattices lie; None for rows.
    """

    setting: Setting
    tau: float
    kept: Kept
    step_us: float
    samples: tuple[Sample, ...]
    positions: int = 0
    policy: str | None = None
    phases_us: Mapping[str, float] = field(default_factory=dict)
    profile: Profile | None = None
    folder: Path | None = None
    tree: str | None = None
    date: str | None = None

    @property
    def speed(self) -> float:
        """Tokens a second and request."""
        return 1e6 * self.tau / self.step_us


@dataclass(frozen=True)
class Measured:
    """All runs by name.  copy_bytes_s: the copy rate of the run's own device, where it was measured."""

    target: Target
    runs: Mapping[str, Run]
    copy_bytes_s: float | None
    digests: Mapping[str, str]

    def run(self, name: str) -> Run:
        """Usage, with what there is, for a name that was not measured."""
        if name not in self.runs:
            raise Usage(f"'{name}' was not measured", f"there is {', '.join(self.runs)}")
        return self.runs[name]

    @property
    def plain(self) -> Run | None:
        """Autoregressive decoding, where it was measured."""
        return next((run for run in self.runs.values() if not run.setting.drafts), None)

    @property
    def samples(self) -> list[Sample]:
        return [sample for run in self.runs.values() for sample in run.samples]


def read_measured(sources: Sequence[Path], depths: int, names: Mapping[str, str] = MappingProxyType({})) -> Measured:
    """Every source, which must be of one target, type and device; depths: positions that the drafter proposes.

    names: other digests of a target by that which a folder names it by (`Subject.names`), so that rows and folders of
    one file can stand side by side.
    Missing for a source that is not there; Usage for one that is cut, empty or of something else than those before it,
    as far as both say what they are of.
    """
    if not sources:
        raise Usage("no measurement is named", "`spt measure` makes a folder; benchmarks.speed writes rows")
    first: Target | None = None
    stated: dict[str, Any] = {}
    places: set[Path] = set()
    runs: dict[str, Run] = {}
    copies, digests = [], {}
    for source in sources:
        if source.resolve() in places:
            raise Usage(f"'{source}' holds '{source.resolve().name}' once more", "name each measurement once")
        places.add(source.resolve())
        read = _folder(source) if source.is_dir() else _rows(source, depths)
        target, own, copy_bytes_s, digest = read
        target = replace(target, digest=names.get(target.digest, target.digest))
        for name, value in target.facts.items():
            if stated.setdefault(name, value) != value:
                said = f"its {name} is '{value}', not '{stated[name]}'"
                raise Usage(f"'{source}' is of another target, type or device: {said}")
        first = first or target
        for run in own:
            if run.setting.name in runs:
                raise Usage(f"'{source}' holds '{run.setting.name}' once more", "name each measurement once")
            runs[run.setting.name] = run
        copies += [copy_bytes_s] if copy_bytes_s else []
        digests[str(source)] = digest
    assert first is not None
    return Measured(first, runs, max(copies, default=None), digests)


# --- rows of benchmarks.speed ---


def _rows(path: Path, depths: int) -> tuple[Target, list[Run], float | None, str]:
    data = _bytes(path)
    rows: dict[str, list[tuple[str, dict[str, Any]]]] = {"about": [], "answer": [], "phases": [], "check": []}
    for row, where in read_lines(data, str(path)):
        check(row, "speed", where)
        rows[row["kind"]].append((where, row))
    if not rows["about"] or not rows["answer"]:
        lacks = "about" if not rows["about"] else "answer"
        raise Usage(f"'{path}' lacks '{lacks}' rows: it is no whole file of benchmarks.speed")
    about = rows["about"][-1][1]
    for where, row in rows["about"]:
        if row["key"] != about["key"]:
            raise Usage(f"{where}: its key is not that of the file's other runs", "keep each in a file of its own")
    phases = {row["setting"]: row for _, row in rows["phases"] if row["steps"]}
    dates = {int(each["run"]): str(each["card"]["date"]) for _, each in rows["about"] if "date" in each.get("card", {})}
    runs = [
        replace(_row_run(path, name, own, phases.get(name), depths), date=_first_date(own.values(), dates))
        for name, own in _answers(rows["answer"]).items()
    ]
    return _row_target(about), runs, about["copy_bytes_s"], hashlib.sha256(data).hexdigest()


def _first_date(answers: Iterable[Mapping[str, Any]], dates: Mapping[int, str]) -> str | None:
    """When the first run that gave one of these answers began."""
    return min((dates[row["run"]] for row in answers if row["run"] in dates), default=None)


def _row_target(about: Mapping[str, Any]) -> Target:
    key = about["key"]
    card = {**about.get("card", {}), **key["card"]}
    # Rows name a drafter by the bytes of its files, which no folder does.
    more = {"drafter's bytes": key.get("drafter"), "jitter": key.get("jitter"), **_card_facts(card)}
    return Target(key["target"], key["widen"], key["dtype"], card["gpu"], more)


def _card_facts(card: Mapping[str, Any]) -> dict[str, Any]:
    """What else of a machine moves its times; on a processor the processor as well."""
    return {name: card.get(name) for name in (*_CARD, *(_CPU if card["gpu"] is None else ()))}


def _answers(rows: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The answers of each setting of ours; Usage for one that cannot have been."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for where, row in rows:
        if row["setting"].startswith("transformers"):
            continue
        own = found.setdefault(row["setting"], {})
        # Named as the answers of a folder are, so that both can be compared request by request.
        name = f"{row['id']}#{row['repeat']}"
        if name in own:
            raise Usage(f"{where}: '{name}' of '{row['setting']}' was there before")
        if own and next(iter(own.values()))["options"] != row["options"]:
            raise Usage(f"{where}: '{row['setting']}' has other options than before")
        _check_answer(row, where)
        own[name] = row
    return found


def _check_answer(answer: Mapping[str, Any], where: str) -> None:
    """Usage unless the tokens are those of the lines, and took a time that steps can take."""
    ids, lines, decode_s = answer["ids"], answer["lines"], answer["decode_s"]
    if not lines:
        raise Usage(f"{where}: 'lines' is empty: nothing was answered")
    if sum(lines) != len(ids):
        raise Usage(f"{where}: 'lines' sum up to {sum(lines)}, and there are {len(ids)} 'ids'")
    steps = len(lines) - 1
    if steps and not LEAST_STEP_US <= 1e6 * decode_s / steps <= MOST_STEP_US:
        raise Usage(f"{where}: 'decode_s' is {decode_s}, which is no time of {steps} step(s)")


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise Missing(f"no measurement at '{path}'", "`spt measure` makes a folder")
    data = read_file(path)
    if not data.endswith(b"\n"):
        raise Usage(f"'{path}' is {'cut: its last line has no end' if data else 'empty'}")
    return data


def _row_run(
    path: Path, name: str, answers: Mapping[str, dict[str, Any]], phases: Mapping[str, Any] | None, depths: int
) -> Run:
    options = next(iter(answers.values()))["options"]
    policy, drafts = _policy(options), options.get("draft") != "none"
    rows = depths if policy is None else budget(policy, depths)
    setting = Setting(name, depths if rows is None else rows, drafts=drafts)
    kept = {each: _kept(row["ids"], row["lines"]) for each, row in answers.items()}
    tau = _tau(kept, f"'{path}': '{name}'")
    stepped = [row for row in answers.values() if len(row["lines"]) > 1]
    samples = tuple(
        Sample(
            replace(setting, context_tok=_context_tok(row)),
            1e6 * row["decode_s"] / (len(row["lines"]) - 1),
            len(row["lines"]) - 1,
        )
        for row in stepped
    )
    known = [(each.setting.context_tok, each.steps) for each in samples if each.setting.context_tok is not None]
    mean_tok = sum(tok * steps for tok, steps in known) / sum(steps for _, steps in known) if known else None
    return Run(
        setting=replace(setting, context_tok=mean_tok),
        tau=tau,
        kept=kept,
        **_ran(policy),
        step_us=1e6 * sum(row["decode_s"] for row in stepped) / sum(sample.steps for sample in samples),
        samples=samples,
        phases_us={phase: phases[f"{phase}_us"] for phase in STEP_PHASES} if phases else {},
    )


def _context_tok(row: Mapping[str, Any]) -> float | None:
    """Mean context of an answer's steps; None for a row that does not say how long its prompt was."""
    return row["prompt_tok"] + len(row["ids"]) / 2 if "prompt_tok" in row else None


def _kept(ids: Sequence[int], lines: Sequence[int]) -> tuple[int, int]:
    """Tokens and steps of an answer, looped steps left out."""
    from spt.lattice import looped

    marks, at, tokens, steps = looped(ids), lines[0], 0, 0
    for count in lines[1:]:
        if not marks[at]:
            tokens, steps = tokens + count, steps + 1
        at += count
    return tokens, steps


# --- folders of `spt measure` ---


def _folder(folder: Path) -> tuple[Target, list[Run], float | None, str]:
    path = folder / _SUMMARY
    if not path.is_file():
        raise Missing(f"no '{_SUMMARY}' in '{folder}'", "`spt measure`, called again, finishes a folder")
    data = read_file(path)
    summary = read_json(data, str(path))
    check(summary, "measurement", str(path))
    for name, digest in summary["files"].items():
        if not (folder / name).is_file() or hashlib.sha256(read_file(folder / name)).hexdigest() != digest:
            raise Usage(f"'{folder / name}' is not the file that was measured", "measure again")
    run = _folder_run(folder, summary)
    return _folder_target(summary), [run], None, hashlib.sha256(data).hexdigest()


def _folder_target(summary: Mapping[str, Any]) -> Target:
    deployment, of, card = summary["deployment"], summary["target"], summary["card"]
    more = {"drafter": summary["drafter"], "jitter": of["jitter"], **_card_facts(card)}
    more |= {name: deployment.get(name) for name in ("mode", "sampling")}
    return Target(of["digest"], of["widen"], deployment.get("dtype", "bfloat16"), card["gpu"], more)


def _folder_run(folder: Path, summary: Mapping[str, Any]) -> Run:
    from spt.steps import read_steps

    steps = read_steps(folder / "steps.jsonl")
    path = folder / "answers.jsonl"
    answers = read_jsonl(read_file(path), str(path), "answer")
    for number, answer in enumerate(answers, 1):
        _check_answer(answer, f"{path}: line {number}")
    kept = {f"{answer['request']}#{answer['turn']}": _kept(answer["ids"], answer["lines"]) for answer in answers}
    if len(kept) != len(answers):
        raise Usage(f"'{path}' holds an answer twice", "measure again")
    tau = _tau(kept, f"'{folder}'")
    decode_s = sum(answer["decode_s"] for answer in answers)
    options = summary["system"]["options"]
    policy, drafts = _policy(options), options.get("draft") != "none"
    binned: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for own in steps.values():
        for start, nodes, us in zip(own.start.tolist(), own.nodes.tolist(), own.us.sum(1).tolist(), strict=True):
            binned.setdefault((nodes, start // CONTEXT_BIN_TOK), []).append((start, us))
    whole = sum(map(len, binned.values()))
    if whole != sum(len(answer["lines"]) - 1 for answer in answers):
        raise Usage(f"'{folder}': its steps are not those of its answers", "measure again")
    mean_us = sum(own.us.sum(0) for own in steps.values()) / whole
    phases_us = dict(zip(STEP_PHASES, mean_us.tolist(), strict=True))
    if phases_us["verify"] < LEAST_STEP_US:
        raise Usage(f"'{folder}': its steps took no time to verify", "measure again")
    # Phases lie beside the clock: what a step took is its share of the whole time.
    clock = 1e6 * decode_s / whole / sum(phases_us.values())
    samples = tuple(
        Sample(
            Setting(folder.name, nodes, sum(start for start, _ in found) / len(found), drafts=drafts),
            clock * sum(us for _, us in found) / len(found),
            len(found),
        )
        for (nodes, _), found in sorted(binned.items())
    )
    nodes = sum(sample.setting.nodes * sample.steps for sample in samples) / whole
    context_tok = sum((sample.setting.context_tok or 0) * sample.steps for sample in samples) / whole
    setting = Setting(folder.name, nodes, context_tok, drafts=drafts)
    profile = folder / _PROFILE
    return Run(
        setting=setting,
        tau=tau,
        kept=kept,
        **_ran(policy),
        step_us=1e6 * decode_s / whole,
        samples=samples,
        phases_us=phases_us,
        profile=read_profile(profile) if profile.exists() else None,
        folder=folder,
        tree=summary["system"]["tree"],
        date=summary["date"],
    )


def _policy(options: Mapping[str, Any]) -> Policy | None:
    """What a system with these options drafts; None where `spt walk` has no word for that."""
    try:
        return running_policy(options)
    except Usage:
        return None


def _ran(policy: Policy | None) -> dict[str, Any]:
    """What a run says of its policy."""
    return {"positions": getattr(policy, "positions", 0), "policy": None if policy is None else str(policy)}


def _tau(kept: Kept, where: str) -> float:
    try:
        return tau_of(kept)[0]
    except Usage as error:
        raise Usage(f"{where}: {error.message}", error.hint) from None
