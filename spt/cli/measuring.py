"""What `spt measure` and `spt job make measure` share: their flags, and the job that these make."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spt.campaign import Requests
    from spt.choice import Chosen
    from spt.deployment import Deployment

__all__ = ["COUNT", "MAX_TOKENS", "SEED", "Measuring"]

COUNT, SEED, MAX_TOKENS = 64, 1, 256  # where no flag says otherwise


@dataclass(frozen=True)
class Measuring:
    """A measurement as its flags name it, checked before anything is written."""

    chosen: "Chosen"
    system: str | None
    requests: "Requests"
    options: Mapping[str, str]
    no_options: bool

    @classmethod
    def of(
        cls,
        system: str | None,
        file: str | None,
        requests: str | None,
        count: int | None,
        options: tuple[str, ...],
        *,
        no_options: bool,
        device: str | None = None,
    ) -> "Measuring":
        """Missing or Unsupported for a deployment that cannot be measured; `device` goes over the deployment's."""
        from spt.campaign import Requests
        from spt.choice import Chosen, nearest_deployment, split_options
        from spt.cli.judging import chosen_deployment
        from spt.measure import SET, check_measurable

        deployment = chosen_deployment(file)
        if device is not None:
            deployment = replace(deployment, device=device)
        check_measurable(deployment)
        held = deployment.requests.get("file")
        path = Path(requests) if requests is not None else None if held is None else deployment.folder / held
        chosen = Chosen(deployment, nearest_deployment(Path.cwd()) if file is None else Path(file))
        return cls(chosen, system, Requests(path, SET, count or COUNT), split_options(options), no_options)

    @property
    def deployment(self) -> "Deployment":
        """What the system runs on."""
        return self.chosen.deployment

    def write_job(self, folder: Path, seed: int | None, max_tokens: int | None) -> Path:
        """Writes trees, requests and job into `folder`; returns the job's file."""
        from spt.cli.generate import make_arm
        from spt.measure import write_measuring_job

        arm = make_arm(self.chosen, self.system, dict(self.options), folder / "system", no_options=self.no_options)
        arms = {"a": arm, "stock": _stock_arm(arm, folder)}
        seed = SEED if seed is None else seed
        return write_measuring_job(folder, self.deployment, arms, self.requests, seed, max_tokens or MAX_TOKENS)

    def make_job(self, to: Path, seed: int | None, max_tokens: int | None) -> None:
        """Writes the job, to be run elsewhere, into the new folder `to`, which appears whole."""
        from spt.campaign import appear

        def make(part: Path) -> None:
            part.mkdir()
            self.write_job(part, seed, max_tokens)

        appear(to, make)


def _stock_arm(arm: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Trusted stock beside the system; one folder serves both where they are the same tree."""
    from spt.resolve import resolve_at
    from spt.system import export

    objects, found = resolve_at(Path(), "stock")
    if found.tree == arm["tree"]:
        return {"dir": arm["dir"], "tree": arm["tree"], "options": {}}
    export(objects, found.tree, folder / "stock")
    return {"dir": "stock", "tree": found.tree, "options": {}}
