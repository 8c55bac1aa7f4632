"""Tables to read, turn and fill."""

from harness.generator.family import Family
from harness.generator.grammar import plural
from harness.generator.scene import MONTHS, Scene, price

__all__ = ["FAMILY"]

_ASK = (
    "Turn this into a Markdown table.",
    "Which row has the largest {field}? {brief}",
    "Sort these rows by {field}, smallest first.",
    "What is the sum of the column '{field}'?",
    "Which rows belong to {month}? {brief}",
    "Describe this table to {a_trade}. {brief}",
    "Write these rows as a JSON list.",
    "What is strange about this table? {brief}",
    "How many rows name {town}? {brief}",
)
_FOLLOW = (
    "What does the first row say, as a sentence?",
    "Which row would you ask {new_given} about? {brief}",
    "Add a row for {new_full} from {new_town}, and show only that row.",
    "Is the largest number more than twice the smallest? {brief}",
    "Which column could be dropped? {brief}",
    "Write the last row with semicolons between the cells.",
    "The number of {new_given} was wrong by {new_n}. Which column would that change? {brief}",
    "What chart would suit it? {brief}",
    "Suggest a name of {new_n} words for this table.",
    "What would a column '{new_colour}' mean here? {brief}",
    "Which of the towns comes first in the alphabet? {brief}",
    "How would {a_trade} use it? {brief}",
)


def _opening(scene: Scene) -> str:
    scene.renew("field", "good", "month", "town", "trade")
    rows = [f"name,town,month,{plural(scene.value('good'))},{scene.value('field')},price"]
    for _ in range(max(3, min(scene.size_tok // 26, 56))):
        names = (scene.fresh("full"), scene.fresh("town"), scene.pick(MONTHS))
        rows.append(",".join((*names, str(scene.between(1, 60)), str(scene.between(100, 999)), price(scene))))
    return scene.deal(_ASK) + "\n\n" + "\n".join(rows)


FAMILY = Family("tables", "the table", _opening, lambda scene: scene.deal(_FOLLOW))
