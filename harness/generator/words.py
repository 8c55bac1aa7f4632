"""Word lists that development sets and finals share; `harness/generator/sealed/words.py` has those of finals alone."""

from dataclasses import dataclass

__all__ = ["OPEN", "Words", "words"]


def words(text: str) -> tuple[str, ...]:
    """The words of a text that commas part."""
    return tuple(" ".join(word.split()) for word in text.split(","))


@dataclass(frozen=True)
class Words:
    """What templates are filled with; nouns stand in the singular, and people and places are made up."""

    given: tuple[str, ...]
    surname: tuple[str, ...]
    town_head: tuple[str, ...]
    town_tail: tuple[str, ...]
    good: tuple[str, ...]  # can be counted, bought, carried
    food: tuple[str, ...]
    animal: tuple[str, ...]
    plant: tuple[str, ...]
    trade: tuple[str, ...]
    place: tuple[str, ...]  # with `the` before it
    tool: tuple[str, ...]
    device: tuple[str, ...]
    material: tuple[str, ...]  # cannot be counted
    colour: tuple[str, ...]
    quality: tuple[str, ...]
    event: tuple[str, ...]
    hobby: tuple[str, ...]
    topic: tuple[str, ...]  # can be explained
    record: tuple[str, ...]  # a noun that programs keep in tables
    field: tuple[str, ...]  # a whole number that such a record has


OPEN = Words(
    given=words("""
        Mara, Tobias, Ines, Kofi, Leila, Arjun, Greta, Mateo, Yuki, Nadia, Oscar, Priya, Samir, Tess, Viktor, Wanda,
        Anton, Bea, Carlos, Dalia, Emil, Farah, Gideon, Hana, Ivo, Jamila, Klaus, Lotte, Milan, Nora, Otis, Petra,
        Quentin, Rosa, Stefan, Talia, Umar, Vera, Wilma, Yara, Zeno, Alma, Boris, Clara, Dimitri, Elsa, Felix, Gloria,
        Hugo, Irma, Jonas, Kira, Luca, Mina, Noah, Olga, Paul, Rita, Simon, Thea
    """),
    surname=words("""
        Adler, Bianchi, Castell, Dorsey, Ekman, Farrow, Grant, Holt, Ibarra, Jensen, Kessler, Lindqvist, Moreau, Novak,
        Okafor, Pereira, Quist, Rahman, Sorensen, Tanaka, Ullman, Vargas, Whitlock, Yilmaz, Zeller, Brandt, Conti,
        Delgado, Ferris, Hargrove, Keller, Lund, Marsh, Nolan, Osei, Petrov, Rossi, Sato, Turner, Weiss
    """),
    town_head=words("""
        Ald, Bram, Cald, Dun, Elm, Fair, Glen, Har, Kings, Lang, Mill, Nor, Oak, Pen, Quarr, Raven, Stan, Thorn, Wind,
        Birch, Cress, Ash, Holl, Marsh, Red, Silver, Stone, West, Wool, Brook
    """),
    town_tail=words("bridge, by, dale, field, ford, ham, haven, hurst, ley, mere, mouth, port, stead, ton, well, wick"),
    good=words("""
        pen, notebook, lamp, candle, basket, blanket, mug, plate, umbrella, towel, envelope, poster, cushion, vase,
        bowl, jar, brush, book, map, ticket, badge, ball, kite, puzzle, scarf, glove, apron, button, clock, mirror,
        chair, bucket, rope, crate, box, bottle, tin, ladder, tile, brick, shelf, stamp, ruler, magnet, battery,
        lantern, whistle, backpack, hammock, tray
    """),
    food=words("""
        apple, pear, orange, lemon, peach, plum, carrot, onion, potato, tomato, cucumber, pepper, pumpkin, melon,
        sandwich, muffin, pie, pancake, cookie, bagel, loaf, egg, sausage, dumpling, fig, apricot, turnip, radish,
        waffle, pretzel
    """),
    animal=words("""
        goat, sheep, hen, duck, goose, horse, donkey, cow, pig, rabbit, cat, dog, otter, heron, owl, badger, hedgehog,
        tortoise, swan, pigeon, parrot, frog, mouse, squirrel, beaver
    """),
    plant=words("""
        rose bush, tulip, oak tree, fern, ivy plant, lavender bush, apple tree, sunflower, willow, pine tree, tomato
        plant, bean plant, cherry tree, daisy, orchid, cactus plant, hazel bush, maple
    """),
    trade=words("""
        baker, carpenter, plumber, tailor, gardener, teacher, nurse, librarian, electrician, painter, mechanic, cook,
        florist, farmer, engineer, architect, potter, glazier, beekeeper, optician, translator, accountant, surveyor,
        printer, watchmaker
    """),
    place=words("""
        library, bakery, museum, workshop, school, theatre, clinic, market hall, swimming pool, post office, harbour,
        town hall, community garden, bookshop, sports club, youth hostel, art gallery, fire station, railway station,
        observatory, laundry, allotment, music school, repair cafe, cinema
    """),
    tool=words("""
        hammer, saw, drill, spade, rake, wrench, chisel, tape measure, paint roller, screwdriver, wheelbarrow, axe,
        trowel, plane, spirit level
    """),
    device=words("""
        kettle, toaster, radio, printer, vacuum cleaner, washing machine, bicycle pump, sewing machine, oven, fridge,
        camera, projector, fan, heater, keyboard, electric bike, blender, dishwasher, router, lawn mower
    """),
    material=words("""
        sand, gravel, flour, rice, clay, timber, wool, linen, copper wire, paint, glue, sugar, compost, cement, coal,
        salt, honey, milk, apple juice, oil
    """),
    colour=words("red, blue, green, yellow, orange, purple, white, black, grey, brown, pink, turquoise"),
    quality=words("""
        small, large, old, new, heavy, light, plain, bright, sturdy, narrow, wide, quiet, cheap, elegant, simple,
        unusual, round, smooth, solid, handy
    """),
    event=words("""
        spring fair, autumn market, summer concert, open day, book sale, charity run, village dance, science evening,
        photo exhibition, chess tournament, harvest supper, film night, bicycle tour, street party, quiz night,
        craft weekend, flower show, sailing race, poetry reading, winter market
    """),
    hobby=words("""
        pottery, chess, birdwatching, knitting, rock climbing, baking, photography, gardening, stargazing, fencing,
        calligraphy, woodcarving, cycling, choir singing, kayaking, model building, juggling, beekeeping, sketching,
        table tennis
    """),
    topic=words("""
        how tides work, why leaves change colour, how a zip fastener closes, why bread rises, how vaccines train the
        body, why the sky looks blue, how a fridge stays cold, why ice floats, how bees make honey, how a compass finds
        north, why we dream, how glass is made, how a bicycle stays upright, why metals conduct heat, how rainbows form,
        how a lock on a canal works, why onions make us cry, how soap removes grease, how a microphone works, why cats
        purr, how paper is recycled, how volcanoes erupt, why salt melts ice, how a piano makes sound, how seeds know
        when to sprout, why the moon has phases, how batteries store energy, how fog forms, why yawning spreads, how a
        touch screen senses a finger, how spiders spin webs, why stars twinkle, how concrete hardens, how sails move a
        boat against the wind, why coins have ridges, how a thermos keeps tea hot
    """),
    record=words("""
        order, invoice, customer, ticket, shipment, booking, sensor, student, employee, product, parcel, player, recipe,
        vehicle, meeting, message, account, song, patient, flight
    """),
    field=words("""
        price, weight, age, score, rating, quantity, distance, duration, height, speed, balance, priority, level, size,
        capacity, temperature
    """),
)
