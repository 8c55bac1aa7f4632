"""Starting a round: everything that can be wrong is said before anything is written."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from spt.apply import apply
from spt.campaign import DEMO, RULE, SESSION_TOK
from spt.deployment import Deployment, parse, read_words
from spt.entry import check_name
from spt.errors import SptError, Unsupported, Usage
from spt.git.objects import Oid
from spt.git.store import Store
from spt.git.worktree import uncommitted
from spt.memory import STOCK, Memory
from spt.resolve import resolve
from spt.round.agents import Limits, Workshop, make_agent
from spt.round.bench import Bench
from spt.round.best import code_commit, record_commit
from spt.round.direction import SystemOf
from spt.round.executors import make_executor
from spt.round.journal import Journal, best_reference, rounds, tree_reference
from spt.round.release import newest_branch
from spt.round.settings import Settings
from spt.seal import make_seal, seal_named
from spt.system import FOLDERS, options_of, split_system
from spt.verdicts import Ledger

__all__ = ["Wanted", "start"]


@dataclass(frozen=True)
class Wanted:
    """What the user says of a new round; None and empty stand for what is usual.

    system: where it starts.  name: of the round.  slots: the devices of each.
    """

    file: Path
    system: str | None = None
    name: str | None = None
    agents: tuple[str, ...] = ()
    rule: str = RULE
    slots: tuple[tuple[str, ...], ...] = ()
    at_once: int | None = None
    sandbox: bool = True
    cost_model: bool = True
    elsewhere: bool = False
    executor: str | None = None
    explore_minutes: float | None = None
    directions: int = 16
    limits: Limits = field(default_factory=Limits)


def start(path: Path, wanted: Wanted) -> Journal:
    """Begins the journal of a new round in the repository at `path`; nothing is measured yet."""
    store = Store.find(path)
    memory = Memory.of(store)
    words = read_words(wanted.file)
    if wanted.slots:  # whoever asks the deployment for its device is told where the round measures
        words = {**words, "device": wanted.slots[0][0]}
    folder = wanted.file.absolute().parent
    deployment = parse(words, str(wanted.file), folder)
    _refuse(store, memory, deployment, wanted)
    system, commit = _start_of(memory, deployment, wanted.system)
    name = check_name(wanted.name) if wanted.name else _free_name(store, deployment.name)
    if name in rounds(store):
        raise Usage(f"there is a round '{name}' already", f"`spt round resume {name}` goes on with it")
    agents = wanted.agents or ("sweep", "memory")
    for word in agents:
        make_agent(word, Workshop(path, deployment, name, wanted.limits))
    sealed = _seal(Ledger(store), deployment, name)
    settings = Settings(
        round=name,
        deployment=words,
        folder=str(folder),
        stock=memory.stock,
        start=system,
        start_commit=commit,
        seal=sealed,
        seed=secrets.randbits(31),
        agents=agents,
        rule=wanted.rule,
        slots=wanted.slots,
        at_once=wanted.at_once or max(1, len(wanted.slots)),
        sandbox=wanted.sandbox,
        cost_model=wanted.cost_model,
        smoke=wanted.rule == DEMO,
        elsewhere=wanted.elsewhere,
        executor=wanted.executor,
        explore_minutes=wanted.explore_minutes,
        directions=wanted.directions,
        limits=wanted.limits,
    )
    return _begin(store, settings)


def _begin(store: Store, settings: Settings) -> Journal:
    from spt.round.budget import Budget

    bench = Bench(store, settings, Budget(None, Path()))
    data = {
        "deployment": bench.deployment.name,
        "digest": bench.digest,
        "stock": settings.stock,
        "start": settings.start.record(),
        "start_commit": settings.start_commit,
        "commitment": seal_named(Ledger(store), settings.seal).commitment,
        "agents": list(settings.agents),
        "limits": dict(vars(settings.limits)),
        "modes": {"cost_model": settings.cost_model, "agents": settings.at_once},
        "rule": settings.rule,
    }
    record = record_commit(
        store.objects,
        settings.start_commit,
        settings.start,
        bench.digest,
        "best: the start",
        {"Spt-Round": settings.round},
        0,
    )
    journal = Journal(store, settings.round)
    references = {best_reference(settings.round): record, tree_reference(settings.round, "start"): settings.start.tree}
    journal.begin(settings.record(), data, references)
    return journal


def _refuse(store: Store, memory: Memory, deployment: Deployment, wanted: Wanted) -> None:
    if wanted.rule not in (RULE, DEMO):
        raise Usage(f"--rule '{wanted.rule}' is none", f"there are: {RULE}, {DEMO}")
    if deployment.served:
        raise Unsupported("an engine 'openai' has no system of ours in it: there is nothing for a round to change")
    if deployment.concurrency != 1:
        raise Unsupported(
            f"a round times requests one at a time, not {deployment.concurrency} at once",
            "leave out 'load.concurrency' of the deployment",
        )
    if wanted.rule == RULE and (context := deployment.context_tok()) < SESSION_TOK:
        raise Usage(
            f"the deployment's context of {context} is too small for the final, which needs {SESSION_TOK}",
            f"set 'context: {SESSION_TOK}' in the deployment",
        )
    if wanted.executor is not None:
        if wanted.elsewhere:
            raise Usage(f"--executor '{wanted.executor}' and --elsewhere are two ways", "leave one out")
        make_executor(wanted.executor).check()
    dirty = [] if store.work_tree is None else [path for path in uncommitted(store) if path.startswith(_TOPS)]
    if dirty and wanted.system in (None, "HEAD", "rev:HEAD"):
        raise Usage(
            f"'{dirty[0]}' is not committed, and a round starts from commits",
            "commit it, or name a SYSTEM to start from",
        )
    if wanted.cost_model:
        from spt.measure import check_measurable

        try:
            check_measurable(deployment)
        except SptError as error:
            error.hint = f"{error.hint}; --no-cost-model goes without" if error.hint else "--no-cost-model goes without"
            raise


_TOPS = tuple(f"{folder}/" for folder in FOLDERS)


def _start_of(memory: Memory, deployment: Deployment, word: str | None) -> tuple[SystemOf, Oid]:
    """The system to start from and the newest commit of its code: what the user names, else the newest system of this
    deployment, else the deployment's own, else stock."""
    word = word or newest_branch(memory.store, deployment.name) or deployment.system or "stock"
    found = resolve(memory, word)
    declared = options_of(memory.objects, found.tree)
    options = {name: value for name, value in found.options.items() if value != declared[name].default}
    return SystemOf(found.tree, options), _commit_of(memory, split_system(word)[0])


def _commit_of(memory: Memory, head: str) -> Oid:
    stock = memory.store.reference(f"{STOCK}{memory.stock[:12]}")
    if stock is None:
        raise Usage("this repository keeps no commit of its stock", "`spt init` run again makes one")
    names = head.split("+")
    if head == "stock":
        return stock
    if all(name in memory.entries for name in names):
        applied = apply(memory, names, stock)
        with memory.store.locked():
            memory.store.stage(f"refs/spt/tmp/start-{applied.commit[:12]}", applied.commit)
            memory.store.publish("spt round start")
        return applied.commit
    return code_commit(memory.objects, memory.store.resolve(head.removeprefix("rev:")))


def _free_name(store: Store, deployment: str) -> str:
    taken, number = set(rounds(store)), 1
    while f"{deployment}-{number}" in taken:
        number += 1
    return check_name(f"{deployment}-{number}")


def _seal(ledger: Ledger, deployment: Deployment, name: str) -> str:
    """The seal of the round's final; one that a killed start made, or one beside this, and nobody used, is taken over:
    of two starts the journal lets one begin."""
    try:
        sealed = seal_named(ledger, name)
    except SptError:
        try:
            return make_seal(ledger, deployment, name).name
        except Usage as error:
            try:
                sealed = seal_named(ledger, name)
            except SptError:
                raise error from None
    if sealed.drawn is not None:
        raise Usage(f"the seal '{name}' was used", "--name gives the round another name")
    return sealed.name
