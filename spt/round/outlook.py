"""What a round knows before it begins to work: the measured system against its ceiling, and the task in words."""

from typing import Any

from spt.round.agents import Task
from spt.round.bench import Bench
from spt.round.direction import SystemOf

__all__ = ["measured_of", "task_text"]


def measured_of(bench: Bench, system: SystemOf) -> dict[str, Any]:
    """The data of the event `measured`: measured now, or found measured."""
    from spt.study import Subject, study

    folder, _ = bench.measured(system)
    deployment = bench.deployment
    models = deployment.models
    found = study([folder], Subject(models.target, models.drafter, deployment.widen))
    now = found.now
    kinds = {each.rates.kind: each.headroom for each in found.ceilings}
    return {
        "folder": str(folder),
        **system.record(),
        "tau": found.run.tau,
        "nodes": found.run.setting.nodes,
        "current_tok_s": found.run.speed,
        "factors": dict(now.factors),
        "published": kinds.get("published"),
        "calibrated": kinds.get("calibrated"),
        "step_us": found.run.step_us,
        "floors_us": {each.name: each.floor_us for each in now.classes},
        "classes_us": {each.name: each.us for each in now.classes},
        "gains": [
            {"direction": gain.direction, "gain": gain.gain, "low": gain.low, "high": gain.high, "basis": gain.basis}
            for gain in found.plan()
        ],
    }


def task_text(task: Task, deployment: str) -> str:
    """The task in words, the same for every agent."""
    lines = [
        f"Make the deployment '{deployment}' faster without changing what it says: phase {task.phase}.",
        f"The base is the system tree {task.base.tree}, options {dict(task.base.options) or 'at their defaults'}.",
        "A mechanism stands behind an option whose default is stock: with every option at its default the tree says",
        "what stock says, tokens and logits, in exact mode; switched on, the same tokens.",
        "Allowed are stock/, kernels/ and checks/; not stock/worker.py.  A gain below 3 % is not worth a campaign.",
    ]
    if task.outlook is not None:
        factors = ", ".join(f"{name} {value:.2f}" for name, value in task.outlook["factors"].items())
        lines.append(f"To the ceiling there are these factors: {factors}.")
        for gain in task.outlook["gains"]:
            if gain["gain"] is not None:
                lines.append(f"- {gain['direction']}: {gain['gain']:+.1%} predicted; {gain['basis']}")
    if task.declined:
        lines.append("Declined before:")
        lines += [f"- {one['title']} ({one['gate']}): {one['reason']}" for one in task.declined]
    return "\n".join(lines) + "\n"
