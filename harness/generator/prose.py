"""Passages: made-up reports about a place and its people, of any length, and questions that they answer."""

from harness.generator.scene import Scene

__all__ = ["notes", "passage"]

# Each sentence with a question about it; the slots of both are filled alike.
_FACTS = (
    ("{new_given} repaired the {new_device} on {weekday} with {a_tool}.", "Who repaired the {device}?"),
    ("In {new_year} {new_full} gave {new_nnn} {new_goods} to the {place}.", "How many {goods} did {full} give?"),
    ("The {new_event} in {new_month} drew {new_nnn} visitors.", "How many visitors came to the {event}?"),
    ("{new_full}, {a_trade} from {new_town}, looks after the {new_plants}.", "Who looks after the {plants}?"),
    ("Since {new_year} the doors have opened at {new_clock}.", "At what time do the doors open?"),
    ("{new_a_good} costs {new_price} at the counter, which {new_given} finds fair.", "What does {a_good} cost?"),
    ("One {new_weekday} in {new_month} {a_animal} walked in and slept beside the {new_device}.",
     "Which animal walked in one {weekday}?"),
    ("The walls were painted {new_colour} after a vote that {new_given} won.", "Which colour were the walls painted?"),
    ("{new_given} teaches {new_hobby} every {new_weekday}.", "What does {given} teach?"),
    ("A storm in {new_month} broke {new_n} windows and soaked {new_nn} {new_goods}.", "What did the storm break?"),
    ("Nobody knows who left the {new_colour} {new_good} on the roof.", "What was left on the roof?"),
    ("The committee meets in {new_town} and is led by {new_full}.", "Who leads the committee?"),
    ("{new_given} counted {new_nnn} {new_foods} and wrote the number on the back of a ticket.",
     "What did {given} count?"),
    ("A new {new_device} was bought for {new_price}, a little more than planned.", "What was bought for {price}?"),
    ("The oldest thing in the building is {a_good} from {new_year}.", "How old is the oldest thing in the building?"),
    ("{new_given} and {new_given2} argued about the price of {new_material} until closing time.",
     "What did {given} and {given2} argue about?"),
    ("Each helper gets {new_n} free {new_foods} and a seat at the {new_event}.", "What does each helper get?"),
    ("The delivery of {new_material} came {new_n} days late because the road to {new_town} was closed.",
     "Why was the delivery late?"),
    ("{new_full} drew the plans for the new hall, which holds {new_nnn} people.", "How many people fit in the hall?"),
    ("In winter the {new_animals} are kept behind the {new_place}.", "Where are the {animals} kept in winter?"),
    ("A letter with the number {new_code} is still missing.", "Which letter is missing?"),
    ("{new_given} walks {new_n} kilometres from {new_town} every morning.", "How far does {given} walk?"),
    ("The group for {new_hobby} has {new_nn} members, most of them new to it.",
     "How many members has the group for {hobby}?"),
    ("On {new_weekday} evenings {new_given} tells children {new_topic}.", "What does {given} explain to children?"),
    ("The key to the cellar hangs behind the {new_colour} {new_good}.", "Where does the key to the cellar hang?"),
    ("{new_nn} neighbours signed a request for {a_plant} at the entrance.", "What did the neighbours ask for?"),
    ("The roof was last mended in {new_year} by {new_full}.", "When was the roof last mended?"),
    ("{new_given} keeps {new_nn} {new_animals} and sells {new_material} on the side.", "What does {given} sell?"),
    ("Insurance for the {new_tool} and the {new_device} costs {new_price} a year.", "What does the insurance cost?"),
    ("A class of {new_nn} children planted {a_plant} beside the fence.", "What did the children plant?"),
)  # fmt: skip
_OPENINGS = (
    "The {place} in {town} has been run by {full} since {year}.",
    "Few people outside {town} know the {place} that {full} opened in {year}.",
    "{full} still remembers how the {place} of {town} began in {year}.",
    "This is a short report about the {place} in {town}, written in {month} by {full}.",
)
_LINKS = ("", "", "", "", "", "By the way, ", "As far as anyone can tell, ", "Even so, ", "Besides, ")
_LINKED = ("The ", "A ", "An ", "Nobody ", "Each ", "Insurance ")  # not a name, and no comma comes


def passage(scene: Scene, tok: int) -> str:
    """A passage of about `tok` tokens in paragraphs; its questions are added to the scene's."""
    sentences, letters = [scene.deal(_OPENINGS)], 0
    while letters < 4 * tok or len(sentences) < 2:
        sentence, question = scene.next_of(_FACTS)
        sentences.append(_linked(scene, scene.fill(sentence)))
        letters += len(sentences[-1])
        scene.questions.append(scene.fill(question))
    return _paragraphs(scene, sentences)


def notes(scene: Scene, tok: int) -> str:
    """Some background to put before a question, ending in an empty line; nothing where `tok` is small."""
    if tok < 60:
        return ""
    return scene.pick(("Some background first.", "For context, here is what I know.", "Let me set the scene.")) + (
        f"\n\n{passage(scene, tok)}\n\n"
    )


def _linked(scene: Scene, sentence: str) -> str:
    link = scene.pick(_LINKS)
    return link + sentence[0].lower() + sentence[1:] if link and sentence.startswith(_LINKED) else sentence


def _paragraphs(scene: Scene, sentences: list[str]) -> str:
    made, start = [], 0
    while start < len(sentences):
        length = scene.between(3, 7)
        made.append(" ".join(sentences[start : start + length]))
        start += length
    return "\n\n".join(made)
