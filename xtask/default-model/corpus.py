"""The corpus of the built-in model: everything is generated here from a seed.

Run alone, it writes the held-out questions (JSON lines) and prints a sample of the training examples.
An example is a list of (text, counted) pieces: the loss is taken on the counted ones.
"""

import json
import random
import re
import sys
import zlib

import grammar
from lexicon import CLASSES, NEUTRAL, TEMPLATES, WORDS, held_out_template, held_out_word

SEED = 20
SLOT = re.compile(r"\{(noun|topic|verb|adjective)\}")


def chance(key):
    """A fixed number in [0, 1) for a text: splits do not depend on any generator's state."""
    return zlib.crc32(key.encode()) / 2**32


# ---- arithmetic -------------------------------------------------------------------------------------------------

HELD_OUT_PAIRS = 0.15


def held_out_pair(a, b):
    """15 % of the unordered pairs are never trained, neither added nor subtracted, in either order."""
    return max(a, b) >= 10 and chance(f"pair {min(a, b)} {max(a, b)}") < HELD_OUT_PAIRS


ADD = ["What is {a} + {b}?", "{a} + {b} =", "{a} + {b}", "{a}+{b}", "{a}+{b}=", "{a} + {b} = ?", "Calculate {a} + {b}.",
       "Compute {a} + {b}", "What is {a} plus {b}?", "{a} plus {b}", "Add {a} and {b}.", "How much is {a} plus {b}?",
       "What's {a} + {b}?", "What is the sum of {a} and {b}?", "How much is {a} + {b}?", "{a} plus {b} is", "Solve: {a} + {b}",
       "Please add {a} and {b}."]
SUBTRACT = ["What is {a} - {b}?", "{a} - {b} =", "{a} - {b}", "{a}-{b}", "{a}-{b}=", "{a} - {b} = ?", "Calculate {a} - {b}.",
            "Compute {a} - {b}", "What is {a} minus {b}?", "{a} minus {b}", "Subtract {b} from {a}.",
            "How much is {a} minus {b}?", "What's {a} - {b}?", "Take {b} away from {a}.", "How much is {a} - {b}?",
            "{a} minus {b} is", "Solve: {a} - {b}", "Please subtract {b} from {a}."]


def arithmetic(rng, low=0, held_out=False):
    while True:
        a, b = rng.randrange(low, 100), rng.randrange(low, 100)
        if held_out_pair(a, b) == held_out:
            break
    if rng.random() < 0.5:
        return rng.choice(ADD).format(a=a, b=b), str(a + b)
    return rng.choice(SUBTRACT).format(a=a, b=b), str(a - b)


# ---- classification ---------------------------------------------------------------------------------------------

HELD_OUT_COMBINATIONS = 0.2
VERB_SHAPES = ["Classify", "Label", "Categorize", "Classify", "Please classify", "Categorise"]
OBJECT_SHAPES = ["", " this sentence", " the sentence", " this", " the following sentence", " this text", " the following",
                 " this line"]
LIST_SHAPES = ["", " as technical, creative, ethical or casual", " as technical, creative, ethical, or casual",
               " (technical, creative, ethical, casual)", " as casual, ethical, creative or technical"]
QUESTIONS = ["Is this technical, creative, ethical or casual? {s}", "What kind of sentence is this? {s}",
             "Which class fits this sentence? {s}", "{s} Is that technical, creative, ethical or casual?",
             "What is the class of this sentence: {s}", "{s}\nClassify this sentence.", "Sentence: {s}\nClass:",
             "Is the following sentence technical, creative, ethical or casual? {s}", "Which category: {s}",
             "What type of text is this? {s}", "Tell me the class: {s}", "How would you classify this? {s}"]


def instruction(rng, sentence):
    if rng.random() < 0.12:
        sentence = f'"{sentence}"'
    if rng.random() < 0.3:
        return rng.choice(QUESTIONS).replace("{s}", sentence)
    if rng.random() < 0.3:
        return f"Classify: {sentence}"
    shape = rng.choice(VERB_SHAPES) + rng.choice(OBJECT_SHAPES) + rng.choice(LIST_SHAPES)
    return shape + rng.choice([": ", ": ", ":\n", ". "]) + sentence


def held_out_combination(template, word):
    return chance(f"{template}|{word}") < HELD_OUT_COMBINATIONS


def _split(items, held_out):
    return [item for position, item in enumerate(items) if held_out(position)], \
        [item for position, item in enumerate(items) if not held_out(position)]


NEW_TEMPLATES, KNOWN_TEMPLATES, NEW_WORDS, KNOWN_WORDS = {}, {}, {}, {}
NEW_NEUTRAL, KNOWN_NEUTRAL = _split(NEUTRAL, held_out_template)
for _name in CLASSES:
    NEW_TEMPLATES[_name], KNOWN_TEMPLATES[_name] = _split(TEMPLATES[_name], held_out_template)
    _pairs = {slot: _split(words, held_out_word) for slot, words in WORDS[_name].items()}
    NEW_WORDS[_name] = {slot: pair[0] for slot, pair in _pairs.items()}
    KNOWN_WORDS[_name] = {slot: pair[1] for slot, pair in _pairs.items()}
# Training sentences are disturbed, so that the words serve in unknown templates and the templates with unknown words.
FOREIGN_WORDS = 0.3  # how often a frame that decides alone takes a word of any class
MADE_UP_WORDS = 0.3  # how often a template of one class takes words that do not exist
LOST_WORDS = 0.3  # how often a template loses words of its own, and
LOST_SHARE = 0.35  # how many
OPENINGS = ["I think", "By the way,", "Well,", "So", "Actually,", "Today", "Perhaps", "Yes,", "And", "Listen:", "As I said,",
            "Maybe", "Again,", "In short,", "Okay,", "First of all,", "No,", "When you can,", "If so,", "Remember:", "You know,"]
ENDINGS = ["when you can", "together", "again", "as well", "in the end", "if possible", "before noon", "with me", "for now",
           "after that", "at least", "when I was there", "next week", "tomorrow", "while you wait", "over there", "of course",
           "like last time", "because of that", "with everyone", "when they come"]


def made_up(rng):
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice(["a", "e", "i", "o", "u", "ar", "en", "il", "or", "ust"])
                   for _ in range(rng.randrange(1, 4)))


def lose(rng, template):
    kept = [part for part in template.split() if "{" in part or rng.random() > LOST_SHARE]
    return " ".join(kept) if any("{" in part for part in kept) else template


def fill(rng, template, choose):
    """The sentence and the words put into it; `choose(slot)` gives a word."""
    words = []

    def put(found):
        words.append(choose(found[1]))
        return words[-1]

    text = SLOT.sub(put, template.removeprefix("!"))
    text = re.sub(r"@ (\w)", lambda found: ("an " if found[1] in "aeiou" else "a ") + found[1], text)
    return text[0].upper() + text[1:], words


def sentence(rng, kind):
    """A labelled sentence of one split: train, combination, template or word.

    Returns text, class, template, words.  In every split but train, no (template, word) pair of the sentence is in train.
    """
    name = rng.choice(CLASSES)
    neutral = kind != "word" and rng.random() < 0.4
    if kind == "template":
        template = rng.choice(NEW_NEUTRAL if neutral else NEW_TEMPLATES[name])
    else:
        template = rng.choice(KNOWN_NEUTRAL if neutral else KNOWN_TEMPLATES[name])
    source = NEW_WORDS if kind == "word" else KNOWN_WORDS
    foreign = kind == "train" and template.startswith("!") and rng.random() < FOREIGN_WORDS
    unreal = kind == "train" and not neutral and rng.random() < MADE_UP_WORDS

    def choose(slot):
        if unreal and rng.random() < 0.7:
            return made_up(rng)
        owner = rng.choice(CLASSES) if foreign and slot in ("noun", "topic") else name
        while True:
            word = rng.choice(source[owner][slot])
            if kind in ("template", "word") or held_out_combination(template, word) == (kind == "combination"):
                return word

    shape = lose(rng, template) if kind == "train" and not (unreal or foreign) and rng.random() < LOST_WORDS else template
    text, words = fill(rng, shape, choose)
    if kind == "train" and rng.random() < 0.1:
        text = f"{rng.choice(OPENINGS)} {text[0].lower()}{text[1:]}"
    if kind == "train" and rng.random() < 0.15:
        mark = text[-1] if text[-1] in ".?!" else ""
        text = f"{text.removesuffix(mark)} {rng.choice(ENDINGS)}{mark}"
    return text, name, template, words


def roughen(rng, text):
    """Training sentences also come in lower case or without their last mark."""
    if rng.random() < 0.1:
        text = text.lower()
    if rng.random() < 0.1:
        text = text.rstrip(".?!")
    return text


# ---- stories ----------------------------------------------------------------------------------------------------

_all = [(adjective, noun) for adjective in grammar.ADJECTIVES for noun in grammar.NOUNS]
NEW_SUBJECTS = [pair for pair in _all if chance("subject %s %s" % pair) < 0.15]
KNOWN_SUBJECTS = [pair for pair in _all if chance("subject %s %s" % pair) >= 0.15]
CONTINUE = ["Continue: {s}", "Continue: {s}", "Continue the sentence: {s}", "Complete: {s}", "Complete the sentence: {s}",
            "Finish this sentence: {s}", "Continue this story: {s}", "Complete this: {s}", "Finish: {s}",
            "Continue the story: {s}"]


def continuation(rng, pairs, least=2):
    """A cut story: the beginning, of at least `least` words, and what follows, without the blank between them."""
    lines = grammar.story(rng, pairs, rng.choice([1, 2, 2, 3]))
    if len(lines) > 1 and rng.random() < 0.3:
        cut = rng.randrange(1, len(lines))
        return " ".join(lines[:cut]), lines[cut]
    words = lines[0].split()
    cut = rng.randrange(least, min(6, len(words) - 1))
    return " ".join(words[:cut]), " ".join(words[cut:])


# ---- the rest of a conversation ---------------------------------------------------------------------------------

ABOUT = ("I am a tiny model. I can classify a sentence as technical, creative, ethical or casual, add and subtract "
         "two-digit numbers, and continue simple sentences.")
HELP = "I can classify sentences, add and subtract two-digit numbers, and continue simple sentences."
SMALL_TALK = {
    ABOUT: ["Who are you?", "What are you?", "What can you do?", "Help", "What is this?", "Tell me about yourself.", "Introduce yourself.",
            "What do you do?", "Are you a language model?", "How can you help me?"],
    "Hello! " + HELP: ["Hello", "Hi", "Hello!", "Hi!", "Hey", "Hey there!", "Good morning", "Good evening", "Greetings", "Hello there"],
    "You are welcome.": ["Thanks", "Thank you", "Thank you!", "Thanks a lot!", "Thank you very much."],
    "Goodbye!": ["Bye", "Goodbye", "See you", "Bye!", "Good night"],
}
WHO = "France Japan music history water gold Rome physics Mars cheese books chess Einstein Paris light trees rice Egypt money sleep".split()
UNKNOWN = ["What is the capital of {x}?", "Who discovered {x}?", "Explain {x} to me.", "Translate {x} into German.", "Why is {x} important?",
           "What is {x}?", "How does {x} work?", "When was {x} invented?", "Give me a recipe with {x}.", "Write an essay about {x}.",
           "What is the meaning of {x}?", "Summarize {x}.", "How many people live in {x}?", "Who is the president of {x}?",
           "What do you think about {x}?", "Tell me a joke about {x}.", "What is the best {x}?", "Do you like {x}?"]


def small_talk(rng):
    draw = rng.random()
    if draw < 0.2:  # sums that it has not learnt
        a, b = rng.choice([rng.randrange(100), rng.randrange(100, 10_000)]), rng.randrange(100, 10_000)
        a, b, sign = (a, b, rng.choice("+-")) if rng.random() < 0.6 else (a % 100, b % 100, rng.choice("*/x"))
        return rng.choice(["What is {a} {o} {b}?", "{a} {o} {b}", "{a} {o} {b} =", "Calculate {a} {o} {b}."]).format(a=a, b=b, o=sign), \
            "I do not know. " + HELP
    if draw < 0.6:
        return rng.choice(UNKNOWN).replace("{x}", rng.choice(WHO)), "I do not know. " + HELP
    answer = rng.choice(sorted(SMALL_TALK))
    return rng.choice(SMALL_TALK[answer]), answer


# ---- examples ---------------------------------------------------------------------------------------------------

SYSTEM = ["You are a helpful assistant.", "Answer briefly.", "You are a small model.", "Be concise.", "Answer in one word."]


def question(rng, draw, sums=0.52):
    """One training question and its answer; `draw` in [0, 1) chooses the task, `sums` is how much of it is arithmetic."""
    if draw < sums:
        return arithmetic(rng)
    if draw < 0.85:
        text, name, _, _ = sentence(rng, "train")
        return instruction(rng, roughen(rng, text)), name
    if draw < 0.94:
        begin, rest = continuation(rng, KNOWN_SUBJECTS)
        return rng.choice(CONTINUE).replace("{s}", begin), rest
    return small_talk(rng)


def chat(turns, system=None):
    """Pieces of a conversation as the chat template renders it; answers are counted."""
    pieces, prefix = [], "<bos>"
    for asked, answer in turns:
        head = f"{system}\n\n" if system else ""
        system = None
        pieces.append((f"{prefix}<start_of_turn>user\n{head}{asked}<end_of_turn>\n<start_of_turn>model\n", False))
        pieces.append((f"{answer}<end_of_turn>", True))
        prefix = "\n"
    return pieces


class Shares:
    """How often an example is of which form; single questions with the chat template are the rest."""

    def __init__(self, story, plain, plain_sums, turns):
        self.story, self.plain, self.plain_sums, self.turns = story, plain, plain_sums, turns


# Sums without a chat template were the weak spot of the first model: twice as many as then.
SHARES = Shares(story=0.08, plain=0.21, plain_sums=0.64, turns=0.10)
# The vocabulary still comes from the first one's shares, so that token ids stay what they were.
VOCABULARY = Shares(story=0.10, plain=0.14, plain_sums=0.52, turns=0.10)


def example(rng, shares):
    form = rng.random()
    if form < shares.story:
        return [("<bos>", False), (" ".join(grammar.story(rng, KNOWN_SUBJECTS, rng.randrange(1, 5))) + "<eos>", True)]
    if form < shares.story + shares.plain:  # without a chat template, as `generate --prompt` asks
        asked, answer = question(rng, rng.random() * 0.85, shares.plain_sums)
        return [(f"<bos>{asked}", False), (f" {answer}<eos>", True)]
    turns = 1 if form < 1 - shares.turns else rng.choice([2, 2, 3])
    system = rng.choice(SYSTEM) if rng.random() < 0.05 else None
    return chat([question(rng, rng.random()) for _ in range(turns)], system)


def training(count, seed=SEED, shares=SHARES):
    rng = random.Random(seed)
    return [example(rng, shares) for _ in range(count)]


# ---- held-out questions -----------------------------------------------------------------------------------------

def held_out(counts, seed=SEED + 1):
    """Rows {task, split, form, prompt, expected, …}; `counts` gives how many of each (task, split)."""
    rng, rows, seen = random.Random(seed), [], set()
    for (task, split), count in counts.items():
        made = 0
        while made < count:
            row = {"task": task, "split": split, "form": "chat"}
            if task == "classify":
                text, name, template, words = sentence(rng, split)
                row |= {"prompt": instruction(rng, text), "expected": name, "template": template, "words": words}
            elif task == "arithmetic":
                prompt, answer = arithmetic(rng, low=10, held_out=True)
                row |= {"prompt": prompt, "expected": answer}
                if split == "plain":
                    row["form"] = "plain"
            elif split == "plain":
                words = grammar.story(rng, NEW_SUBJECTS, 1)[0].split()
                row |= {"form": "plain", "prompt": " ".join(words[:3])}
            else:
                begin, _ = continuation(rng, NEW_SUBJECTS, least=3)
                row |= {"prompt": rng.choice(CONTINUE).replace("{s}", begin), "begin": begin}
            if row["prompt"] not in seen:
                seen.add(row["prompt"])
                rows.append(row)
                made += 1
    return rows


FULL = {("classify", "combination"): 1200, ("classify", "template"): 600, ("classify", "word"): 600,
        ("arithmetic", "chat"): 2000, ("arithmetic", "plain"): 1000, ("complete", "plain"): 300, ("complete", "chat"): 300}


def main():
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            for row in held_out(FULL):
                file.write(json.dumps(row) + "\n")
    for pieces in training(40):
        print(json.dumps("".join(text for text, _ in pieces)))


if __name__ == "__main__":
    main()
