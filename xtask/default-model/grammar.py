"""A small English grammar: animals and people who move through places.

It generates texts and decides whether a text belongs to it, so completions can be judged.
Number agrees, and the noun's kind selects its verbs, the verb its prepositions, and these their places.
"""

import re

ADJECTIVES = """red brown small old young quick gentle brave sleepy hungry white black grey quiet clever happy tired
proud shy tall""".split()
ANIMALS = {
    "land": "fox dog cat horse rabbit goat lion cow pony hedgehog squirrel badger tiger donkey bear".split(),
    "air": "bird owl eagle crow robin sparrow hawk bat swallow pigeon".split(),
    "water": "frog otter seal duck turtle whale dolphin beaver".split(),
}
PEOPLE = {"girl": "she", "queen": "she", "princess": "she", "grandmother": "she", "boy": "he", "king": "he",
          "prince": "he", "grandfather": "he"}
PLACE_ADJECTIVES = "green quiet dark old wide deep cold misty sunny narrow snowy empty".split()
LAND, HIGH, WATER = "forest field meadow valley garden village".split(), "hill bridge fence wall road".split(), \
    "river lake pond stream sea".split()
STATIC = "tree barn bridge wall tower house".split()
FRUIT = "apple pear plum berry cherry".split()

# verb stem -> {preposition: places}
MOTION = {"through": LAND, "over": HIGH, "across": LAND + HIGH[1:2], "around": WATER[1:3] + STATIC[:2]}
REST = {"under": STATIC, "beside": STATIC + WATER, "near": STATIC + WATER, "behind": STATIC}
SWIM = {"in": WATER, "across": WATER, "through": WATER}
FLY = {"over": LAND + HIGH + WATER, "above": LAND + WATER, "around": STATIC}
VERBS = {
    "land": {"run": MOTION, "walk": MOTION, "jump": {"over": HIGH}, "wander": MOTION, "sleep": REST, "rest": REST},
    "air": {"soar": FLY, "glide": FLY, "sing": REST, "rest": REST},
    "water": {"swim": SWIM, "dive": {"in": WATER}, "sleep": REST, "rest": REST},
}
KIND = {noun: kind for kind, nouns in ANIMALS.items() for noun in nouns} | {noun: "land" for noun in PEOPLE}
NOUNS = sorted(KIND)


def plural(noun):
    return noun[:-1] + "ies" if re.search("[^aeo]y$", noun) else noun + ("es" if noun.endswith(("x", "s")) else "s")


def third(stem):
    return stem + "s"


def subject(rng, pairs):
    """Determiner, adjective, noun and (kind, number, pronoun); `pairs` are the (adjective, noun) allowed.

    The determiner fixes the number, so that "The red fox" is a whole subject, not the head of "foxes".
    """
    adjective, noun = rng.choice(pairs)
    many = rng.random() < 0.35
    determiner = rng.choice(["Two", "Three", "Many", "Some"]) if many else rng.choice(["The", "The", "One"])
    pronoun = "they" if many else PEOPLE.get(noun, "it")
    return f"{determiner} {adjective} {plural(noun) if many else noun}", KIND[noun], many, pronoun


def action(rng, kind, many):
    stem = rng.choice(sorted(VERBS[kind]))
    preposition = rng.choice(sorted(VERBS[kind][stem]))
    place = rng.choice(VERBS[kind][stem][preposition])
    adjective = rng.choice(PLACE_ADJECTIVES) + " " if rng.random() < 0.6 else ""
    return f"{stem if many else third(stem)} {preposition} the {adjective}{place}."


def follow(rng, kind, many, pronoun):
    start = pronoun.capitalize()
    s = "" if many else "s"
    form = rng.randrange(4)
    if form == 0:
        return f"{start} see{s} {article(rng.choice(ADJECTIVES))} {rng.choice(NOUNS)} near the {rng.choice(STATIC + WATER)}."
    if form == 1:
        return f"{start} eat{s} a ripe {rng.choice(FRUIT)}."
    if form == 2:
        return f"Then {pronoun} {action(rng, kind, many)}"
    return f"At night {pronoun} sleep{s} {rng.choice(sorted(REST))} the {rng.choice(STATIC)}."


def article(adjective):
    return ("an " if adjective[0] in "aeiou" else "a ") + adjective


def story(rng, pairs, sentences):
    who, kind, many, pronoun = subject(rng, pairs)
    lines = [f"{who} {action(rng, kind, many)}"]
    lines += [follow(rng, kind, many, pronoun) for _ in range(sentences - 1)]
    return lines


def _any(words):
    return "(?:" + "|".join(sorted(set(words), key=lambda w: (-len(w), w))) + ")"


def _actions(kind, many):
    forms = []
    for stem, places in VERBS[kind].items():
        for preposition, nouns in places.items():
            verb = stem if many else third(stem)
            forms.append(f"{verb} {preposition} the (?:{_any(PLACE_ADJECTIVES)} )?{_any(nouns)}\\.")
    return "(?:" + "|".join(forms) + ")"


def _follow(kind, many, pronoun):
    s = "" if many else "s"
    start, adjectives = pronoun.capitalize(), _any(article(a) for a in ADJECTIVES)
    return "(?:" + "|".join([
        f"{start} see{s} {adjectives} {_any(NOUNS)} near the {_any(STATIC + WATER)}\\.",
        f"{start} eat{s} a ripe {_any(FRUIT)}\\.", f"Then {pronoun} {_actions(kind, many)}",
        f"At night {pronoun} sleep{s} {_any(REST)} the {_any(STATIC)}\\."]) + ")"


def _pattern():
    forms = []
    for many in (False, True):
        groups = {}
        for noun in NOUNS:
            key = (KIND[noun], "they" if many else PEOPLE.get(noun, "it"))
            groups.setdefault(key, []).append(plural(noun) if many else noun)
        determiner = "(?:Two|Three|Many|Some)" if many else "(?:The|One)"
        for (kind, pronoun), nouns in groups.items():
            forms.append(f"{determiner} {_any(ADJECTIVES)} {_any(nouns)} {_actions(kind, many)}"
                         f"(?: {_follow(kind, many, pronoun)})*")
    return re.compile("|".join(f"(?:{form})" for form in forms))


PATTERN = _pattern()


def belongs(text):
    """Whether `text` is one or more whole sentences of one story of the grammar."""
    return PATTERN.fullmatch(text) is not None
