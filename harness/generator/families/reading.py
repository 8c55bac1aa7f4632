"""Questions that a passage answers."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_ABOUT = (
    "Why might that matter to {a_trade}? {brief}",
    "Is that said in the text, or do you guess? {brief}",
    "What could {new_given} do about it? {brief}",
    "Which question does the text leave open? {brief}",
    "Does the text name {new_town}? Answer yes or no.",
)


def _question(scene: Scene) -> str:
    """One of the questions that nobody has asked yet."""
    return scene.questions.pop(scene.below(len(scene.questions)))


def _opening(scene: Scene) -> str:
    scene.questions.clear()
    text = passage(scene, max(40, scene.size_tok - 15))
    question = _question(scene)
    return f"{text}\n\n{question}" if scene.chance(70) else f"{question}\n\n{text}"


def _follow(scene: Scene) -> str:
    if not scene.questions:
        return f"Read on, and then tell me: what is new here? {scene.fill('{brief}')}\n\n{passage(scene, 60)}"
    if scene.chance(25):
        return scene.deal(_ABOUT)
    return f"{_question(scene)} {scene.fill('{brief}')}" if scene.chance(60) else _question(scene)


FAMILY = Family("reading", "the text that you read", _opening, _follow, answer_tok=64)
