"""SQL over made-up tables."""

from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

_ASK = (
    "Write a query for all {records} whose {field} is above {nnn}.",
    "Which query counts the {records} of each town with {a_field} below {nn}?",
    "Write a query for the {n} {records} with the largest {field}.",
    "Write a query that adds {nn} to the {field} of every {record} from {town}.",
    "How do I find {records} that have no {record2} since {month} {year}?",
    "Write a query for the mean {field} a month.",
    "Write a query that removes {records} older than {year}.",
    "Which query lists each name once, sorted by {field}, but not those from {town}?",
    "How do I join {records} with {records2} on the name, and keep {field} only?",
)
_FOLLOW = (
    "Now only those from {new_town}. Show just the condition.",
    "Which index would help? {brief}",
    "What does it return if the table is empty? {brief}",
    "Sort it by {field}, and show only the new line.",
    "Explain the query to {a_trade}. {brief}",
    "Is {new_field} a good name for a column? {brief}",
    "Limit it to {new_nn} rows. Show only the last line.",
    "What if {field} is missing in some rows? {brief}",
    "Write the line that adds {new_full} from {new_town} to the table.",
    "Could it lock the table for long? {brief}",
    "How many rows can it return at most, with {new_nnn} rows in the table? {brief}",
    "Which type should {new_field2} have? One word.",
)


def _table(scene: Scene, record: str, field: str) -> str:
    numbers = (field, *scene.several("field", scene.between(0, 3)))
    columns = ("id INTEGER", "name TEXT", "town TEXT", "month TEXT", *(f"{number} INTEGER" for number in numbers))
    return f"CREATE TABLE {record} ({', '.join(columns)});"


def _row(scene: Scene) -> str:
    return scene.fill("{new_full} | {new_town} | {new_month} | {new_nnn}")


def _opening(scene: Scene) -> str:
    scene.renew("record", "record2", "field", "n", "nn", "nnn", "town", "month", "year")
    record, field = scene.value("record"), scene.value("field")
    ask = scene.deal(_ASK)
    if scene.size_tok < 60:
        return f"{ask} The table is called {record}."
    tables = [_table(scene, record, field), _table(scene, scene.value("record2"), scene.fresh("field"))]
    rows = [_row(scene) for _ in range((scene.size_tok - 110) // 20)]
    about = f"\n\nSome rows of {record}, as name, town, month and {field}:\n\n" + "\n".join(rows) if rows else ""
    return "\n".join(tables) + about + f"\n\n{ask}"


FAMILY = Family("queries", "the query", _opening, lambda scene: scene.deal(_FOLLOW), answer_tok=64)
