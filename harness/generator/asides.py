"""Short clear turns with short answers, which keep a session going.

A small model loops where a question is vague or wants a long answer, and what it said once it says again as long as it
stands in the context.  It hardly does where the question names all that it needs and the form of its answer; the share
that was measured is in docs/requests.md.  Some turns come back to people and things of earlier ones.
"""

from harness.generator.scene import Scene

__all__ = ["aside"]

_SENTENCES = (
    "Rewrite this in the past tense: {new_given} sells {new_n} {new_goods} to {new_a_trade} from {new_town}.",
    "Rewrite this in the future tense: {new_given} opened the {new_place} at {new_clock}.",
    "Rewrite this in the present tense: {new_full} repaired the {new_device} with {new_a_tool}.",
    "Rewrite this with 'they' in place of the names: {new_given} and {new_given2} went to the {new_event}.",
    "Shorten this: due to the fact that the {new_device} was {new_quality}, {new_full} was not able to use it.",
    "Shorten this: {new_given} made the decision to buy {new_a_good} at this point in time.",
    "Join these into one sentence: {new_given} likes {new_hobby}. {given} lives in {new_town}.",
    "Join these into one sentence: The {new_good} is {new_colour}. The {good} belongs to {new_given}.",
    "Turn this into a question: The {new_event} in {new_town} was moved to {new_weekday}.",
    "Say the opposite: The {new_good} of {new_given} is {new_quality}.",
    "Correct the spelling: {new_given} recieved {new_a_good} from {new_town} on {new_weekday}.",
    "Correct the grammar: {new_given} have {new_n} {new_goods} and want to sells them.",
    "Put this into the plural: The {new_animal} sleeps under the {new_plant}.",
    "Replace the name by 'the {new_trade}': {new_given} lost {new_a_good} near the {new_place}.",
    "Which word is the verb? {new_given} carries the {new_good} to {new_town}.",
    "Write this as a headline of at most six words: {new_nnn} people came to the {new_event} in {new_town}.",
)
_SUMS = (
    "What is {new_nn} plus {new_nnn}?",
    "What is {new_nnn} minus {new_nn}?",
    "What is {new_n} times {new_nn}?",
    "What is half of {new_nnn}?",
    "{new_given} has {new_nn} {new_goods} and gives {new_n} away. How many are left?",
    "{new_given} buys {new_n} {new_foods} at ${new_n2} each. What is the total?",
    "Remember {given}? Now {given} gets {new_nn} {new_goods} more. Which sum tells how many there are?",
    "A box holds {new_nn} {new_goods}. How many do {new_n} boxes hold?",
    "A walk of {new_nn} minutes starts at noon. When does it end?",
    "Is {new_nnn} an even number? Answer yes or no.",
    "Which is larger, {new_nnn} or {new_nn} times {new_n}?",
)
_FACTS = (
    "Explain {new_topic} in one sentence.",
    "Explain {new_topic} in one sentence.",
    "Explain {new_topic} in two sentences.",
    "Is {a_good} heavier than {new_a_device}? Answer yes or no, and say why in one sentence.",
    "Can {new_a_animal} swim? Answer in one sentence.",
    "In one sentence, what does {new_a_trade} do?",
    "In one sentence, what is {new_a_tool} used for?",
    "In one sentence, what is {new_hobby}?",
    "In one sentence, how does {new_a_device} work?",
    "In one sentence, where does {new_material} come from?",
    "Name one use for {new_a_good}, in one sentence.",
    "Which season is {new_month} in? One word.",
    "Which is bigger, {new_a_animal} or {new_a_animal2}? One word.",
    "Name a country where people like {new_hobby}. One word.",
    "Does {new_a_plant} need sun? Answer in one sentence.",
)
_WRITING = (
    "Write one sentence with the words {new_good} and {new_animal}.",
    "Write one sentence about {new_given}, who is {new_a_trade} in {new_town}.",
    "Write two sentences about {new_a_trade} and {new_a_animal}.",
    "Write one sentence about the {new_colour} {new_good} of {given}.",
    "Write one sentence in which {given} meets {new_given2} at the {new_event}.",
    "Write a message of one sentence that invites {new_given} to the {new_event} on {new_weekday}.",
    "Write a message of one sentence to {given}: the {new_device} is broken.",
    "Write one sentence of thanks to {new_full} for {new_n} {new_foods}.",
    "Write the first sentence of a story about {new_a_animal} in {new_town}.",
    "Describe {new_a_place} in one sentence.",
    "Suggest a name for {new_a_animal}. One word.",
    "Suggest a name for a shop that sells {new_goods}. Two words.",
)
_CODE = (
    "Write a line of Python that prints the number {new_nnn}.",
    "Write a line of Python that adds {new_nn} to the variable {new_field}.",
    "Write a line of {new_language} that sets the variable {new_field} to {new_nn}.",
    "Write a line of Python that makes a list of {new_n} zeros called {new_record}.",
    "Write a line of SQL that counts the rows of the table {new_record}.",
    "Write a line of SQL that selects {new_field} from the table {new_record}.",
    "In one sentence, what does this do? {new_field} = {new_nn} * {new_n}",
    "In one sentence, what does this do? print(len({new_record}_list))",
    "What does {new_nn} % {new_n} give in Python? One number.",
)
_READING = (
    "{new_full} from {new_town} sells {new_nn} {new_goods} a day. How many {goods} does {full} sell in one day?",
    "The {new_place} opens at {new_clock} on {new_weekday}. When does the {place} open?",
    "On {new_weekday} {new_given} lost {new_a_good} near the {new_place}. What did {given} lose?",
    "The {new_event} is in {new_month} and costs {new_price}. In which month is the {event}?",
    "{new_given} repaired the {new_device} with {new_a_tool}. Which tool did {given} use?",
    "Is this a question or a statement? {new_given} lives in {new_town}",
    "Is this positive or negative? The {new_foods} of {new_given} were the best that I ever had.",
    "Is this positive or negative? The {new_device} broke after {new_n} days.",
    "Which town is named here? {new_full} went to {new_town} on {new_weekday}.",
    "Who is named here? The {new_good} was a gift from {new_full}.",
    "Give only the number: parcel {new_code} weighs {new_nn} kilograms.",
    "Give only the price: {new_a_good} at the {new_event} costs {new_price}.",
)
_KINDS = (_SENTENCES, _SUMS, _FACTS, _WRITING, _CODE, _READING)


def aside(scene: Scene) -> str:
    """A short turn of a kind that was not there just before."""
    return scene.deal(scene.next_of(_KINDS))
