"""Word lists that only finals use; none of these words stands in the open lists."""

from harness.generator.words import Words, words

__all__ = ["SEALED"]

SEALED = Words(
    given=words("""
        Abel, Brigid, Cosmo, Delphine, Ewan, Fumiko, Gaspard, Hedda, Isidro, Jolanta, Kwame, Ludmila, Magnus, Nerys,
        Obi, Pilar, Ravi, Saskia, Tarek, Una, Vito, Winnie, Xenia, Yannick, Zelda, Amparo, Benedikt, Chiara, Duncan,
        Eirini, Florin, Gunnar
    """),
    surname=words("""
        Abara, Blackwood, Cho, Dubois, Engel, Fontaine, Gallo, Hirsch, Iversen, Jankowski, Kowalska, Laurent, Mbeki,
        Nakamura, Oyelaran, Prescott, Ramirez, Schuster, Toivonen, Vandermeer, Winters, Yamada, Zappa, Ashdown
    """),
    town_head=words("Bell, Cobble, Drift, Fern, Gull, Heather, Iron, Juniper, Knoll, Lark, Moor, Otter, Pebble, Rush"),
    town_tail=words("borough, cliff, combe, cross, falls, gate, green, holm, minster, ridge, sands, thorpe, wold"),
    good=words("""
        kettledrum, parasol, satchel, thimble, wallet, quilt, saddle, corkscrew, abacus, inkwell, flute, marble, pillow,
        ribbon, sieve, spoon, stool, teapot, trunk, violin, walking stick, xylophone, zipper, rug, fork
    """),
    food=words("""
        banana, biscuit, cabbage, coconut, date, leek, mango, mushroom, nectarine, omelette, parsnip, quince, raisin,
        scone, tart, walnut, croissant, chestnut
    """),
    animal=words("alpaca, bat, camel, crane, ferret, gull, hare, lizard, mole, newt, ostrich, pony, seal, wren"),
    plant=words("azalea, birch tree, clover, elm, gooseberry bush, iris, lime tree, magnolia, pear tree, vine"),
    trade=words("""
        archivist, blacksmith, chemist, diver, editor, ferryman, geologist, jeweller, locksmith, mason, notary, pilot,
        roofer, saddler, upholsterer, vet, weaver
    """),
    place=words("""
        abbey, bowling alley, cheese dairy, customs office, ferry pier, greenhouse, ice rink, lighthouse, planetarium,
        quarry, sawmill, stables, tea room, vineyard, windmill, youth centre
    """),
    tool=words("anvil, clamp, crowbar, file, hoe, mallet, pickaxe, pliers case, sickle, soldering iron, vice"),
    device=words("""
        air pump, barometer, coffee grinder, dehumidifier, espresso machine, food mixer, gramophone, hair dryer, juicer,
        loudspeaker, microwave, pressure cooker, scanner, telescope, typewriter
    """),
    material=words("barley, chalk, cork, felt, gelatine, hemp, ink, leather, plaster, resin, silk, vinegar, wax"),
    colour=words("beige, crimson, gold, indigo, ivory, lilac, maroon, mint green, navy blue, silver, violet"),
    quality=words("bulky, crooked, delicate, faded, glossy, hollow, odd, polished, rare, shabby, tidy, worn"),
    event=words("""
        balloon festival, cheese tasting, costume ball, dog show, egg hunt, fishing contest, kite festival, lantern
        parade, masked dance, opera night, plant swap, regatta dinner, tulip week, wine tasting
    """),
    hobby=words("""
        archery, bookbinding, croquet, darts, embroidery, falconry, geocaching, ice skating, metal detecting, origami,
        puppetry, quilting, sailing, tap dancing, weaving, yoga
    """),
    topic=words("""
        how a sundial tells the time, why deserts are cold at night, how an escalator works, why popcorn pops, how
        pearls form, why rivers bend, how a smoke detector works, why flamingos are pink, how ink dries, why knots hold,
        how avalanches start, why cheese has holes, how a violin bow makes a string sing, how caves form, why the
        sea is salty, how birds sleep, why old paper turns yellow, how a rudder steers
    """),
    record=words("contract, voucher, exhibit, tenant, donation, survey, machine, lesson, cargo, permit, warrant"),
    field=words("amount, depth, width, rank, volume, altitude, pressure, length, deadline, voltage"),
)
