"""What makes no sense where a server answers: refused before anything is measured (docs/deployment.md)."""

from typing import TYPE_CHECKING

from spt.errors import Unsupported, Usage

if TYPE_CHECKING:
    from spt.arms import Arm
    from spt.deployment import Deployment

__all__ = ["refuse_forcing", "refuse_system", "refuse_timing"]


def refuse_system(word: str) -> None:
    """Usage for any system but plain stock: a server would not run it."""
    if word != "stock":
        raise Usage(
            f"system '{word}': a server has no system of ours in it",
            "say `stock`, or leave it out, and start the server with what you want to see",
        )


def refuse_timing(deployment: "Deployment") -> None:
    """Unsupported where both arms would be one server."""
    if deployment.served:
        raise Unsupported(
            "an engine 'openai' cannot be timed: both arms would be the same server",
            "`spt force stock --no-sandbox` judges whether it says what stock says",
        )


def refuse_forcing(deployment: "Deployment", arm: "Arm", *, sandbox: bool) -> None:
    """Usage where a server is to be enclosed or to run a system, Unsupported where it draws its tokens."""
    if not deployment.served:
        return
    refuse_system(arm.label)
    if arm.options:
        raise Usage("a server takes no options of a system", "say `stock`")
    if sandbox:
        raise Usage(
            "an engine 'openai' cannot be enclosed: it runs elsewhere, and is reached over the network",
            "pass --no-sandbox where the server is trusted",
        )
    if deployment.sampling.temperature > 0:
        raise Unsupported(
            f"temperature {deployment.sampling.temperature:g}: an engine 'openai' draws noise of its own, "
            "and only greedy tokens can be forced",
            "set 'sampling: {temperature: 0}' in the deployment",
        )
