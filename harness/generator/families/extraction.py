"""Facts to be taken out of messages, into fields."""

from harness.generator.family import Family
from harness.generator.prose import passage
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_MESSAGES = (
    "Hello, this is {new_full} from {new_town}. My {new_device}, order {new_code}, came on {new_weekday} with a crack."
    " Please call me before {new_clock}.",
    "{new_given} here. I need {new_nn} {new_goods} at {new_price} each by the {new_date} of {new_month}, delivered to"
    " the {new_place} in {new_town}.",
    "Dear team, {new_full} will be away from {new_weekday} and {new_given} takes over. The number of the contract is"
    " {new_code}.",
    "Booking {new_code}: {new_n} people, {new_month}, two nights in {new_town}, paid {new_price} by {new_full}.",
    "To whom it may concern: I lost {a_good} at the {new_event} in {new_town}. It is {new_colour}. Yours, {new_full}.",
    "Note from the {new_place}: {new_full}, {new_a_trade}, comes on {new_weekday} at {new_clock} to look at the"
    " {new_device}. Costs up to {new_price} are fine.",
    "Parcel {new_code} weighs {new_n} kilograms and holds {new_nn} {new_goods}. {new_given} of {new_town} took it.",
)
_FIELDS = (
    "the name", "the town", "every number", "all names of people", "the price", "the day", "what is wanted",
    "who writes", "the code", "everything that can be counted",
)  # fmt: skip
_FORMS = ("as JSON", "as a list", "as lines of the form key: value", "as a table", "separated by semicolons", "as YAML")
_FOLLOW = (
    "Now the same for this one, in one line.\n\n",
    "And here? Give only the names.\n\n",
    "Which of the two is more urgent? {brief}\n\n",
    "Does this one hold a price? Answer with the price or with no.\n\n",
    "Reply to this in one sentence.\n\n",
    "Which fact is missing in the last message? {brief}",
    "Who should {new_given} call first? {brief}",
    "Put the town of the first message in upper case.",
    "Write a subject line for the last message.",
    "How would you name a field for the {new_device}? One word.",
)


def _opening(scene: Scene) -> str:
    what = " and ".join(scene.sample(_FIELDS, scene.between(1, 3)))
    head = f"Extract {what} {scene.pick(_FORMS)}"
    messages = [scene.deal(_MESSAGES) for _ in range(max(1, min(scene.size_tok // 80, 5)))]
    if scene.size_tok > 500:
        messages.append(passage(scene, scene.size_tok - 400))
    return f"{head}:\n\n" + "\n\n".join(messages)


def _follow(scene: Scene) -> str:
    turn = scene.deal(_FOLLOW)
    return turn + scene.deal(_MESSAGES) if turn.endswith("\n") else turn


FAMILY = Family("extraction", "the messages", _opening, _follow, answer_tok=48)
