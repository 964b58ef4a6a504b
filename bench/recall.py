# SPDX-License-Identifier: Apache-2.0
"""Texts that ask for something said before: facts among prose, lists of pairs, copies, repeated words.

What a model makes of them shows whether keys that a KV policy dropped were needed later: prose alone hardly
does, since most of it is predicted from the last few words. The same generator gives the same text.
Used by kv_quality.py to measure, and by the trainer of tests/data/tiny-llama to teach. A text is a list of
pieces (words, asked): `asked` words repeat something that stands before. Pieces begin where words begin, so
that they may be encoded one by one. Needs nothing but Python's standard library."""
import random
import re

NOUNS = """anchor angel apple arrow axe bag ball band bank basin basket bear bed bee beetle bell belt bench bird blanket
boat bone book boot bottle bowl box branch bread brick bridge brush bucket bull butter button cabin cable cage cake
camel camp candle cannon cap cape card carpet carriage cart castle cat cattle cave chain chair chalk cherry chest
chicken church circle clock cloth cloud coach coal coat coin collar comb cook copper cord corn cottage cotton cow crab
cradle cream cross crow crown cup curtain cushion dagger daisy deer desk diamond dish dog doll donkey door dove dragon
drawer dress drum duck dust eagle egg elbow engine falcon farm feather fence ferry field finger fish flag flame flock
flower flute forest fork fountain fox frog fruit gallery garden gate glass glove goat gold goose grape grass gun hall
hammer hand harbour hare harp hat hawk hedge helmet herb hill hive honey hook horn horse hotel hut ink iron island
ivory jacket jewel key king kitchen kite knife ladder lake lamb lamp lantern leaf leather lemon letter library lily
lion lock log loom mantle map maple marble market mask meadow melon mill mirror monk moon mountain mouse mule museum
nail needle nest net nurse nut oak oar office olive orange orchard organ otter oven owl ox oyster palace paper parrot
pear pearl pencil pepper piano pigeon pillow pine pipe pistol plate plough plum pocket pond pony portrait pot prince
purse queen rabbit raven ribbon rice ring river road robe robin rock roof rope rose ruby sail salmon salt sand saw
school scissors sea shawl sheep shell shield ship shirt shoe shop sickle silk silver skirt sledge sleeve snake soap
soldier spade sparrow spear spider spoon spring square stable star statue steel stone stool storm stove straw street
string sugar sun swallow swan sword table tail tailor tea temple tent thimble thorn thread throne tiger tin tower trap
tree trout trumpet tulip turtle umbrella valley vase velvet village vine violet violin wagon wall wasp watch water wax
well whale wheat wheel whip whistle willow window wine wing wolf wood wool yacht""".split()
KINDS = "black blue brown clean cold dark dry empty golden green grey heavy large little long new old pale plain red " \
        "round sharp short small soft strange white yellow young".split()


def sentences(prose):
    """Prose in pieces, each of which begins with its space."""
    found = re.split(r"(?<=[.!?])[\"']?\s+", prose)
    return [" " + " ".join(s.split()) for s in found if 3 <= len(s.split()) <= 60]


def keys(draw, count, kinds=False):
    """Names that stand for something, all different; without kinds no two share a word."""
    nouns = draw.sample(NOUNS, count)
    return [draw.choice(KINDS) + " " + n for n in nouns] if kinds else nouns


def value(draw, words=False):
    return draw.choice(NOUNS) if words else str(draw.randint(1000, 9999))


FORMS = [  # how a key's value is said, and asked for: what stands before the value
    " The number of the {} is",
    " The {}:",
    " Remember, {} means",
]


def fact(form, key, said):
    return [(FORMS[form].format(key), False), (" " + said, False), (".", False)]


def question(form, key, said):
    return [(FORMS[form].format(key), False), (" " + said, True), (".", False)]


def story(draw, prose, size):
    """Facts among sentences, then questions about them among further sentences; about `size` characters."""
    count = draw.randint(2, max(3, size // 400))
    form, words = draw.randrange(len(FORMS)), draw.random() < 0.3
    facts = [(k, value(draw, words)) for k in keys(draw, count, draw.random() < 0.3)]
    lines = iter(sentences(prose))
    part = draw.uniform(0.2, 0.7)  # facts stand in the first part
    places = sorted(draw.uniform(0, part * size) for _ in facts)
    pieces, length, told = [], 0, 0
    while length < size:
        more = []
        while told < len(facts) and places[told] <= length:
            more += fact(form, *facts[told])
            told += 1
        if told and draw.random() < (0.15 if told < len(facts) else 0.6):
            more += question(form, *facts[draw.randrange(told)])
        if told < len(facts) or draw.random() < 0.6:
            more.append((next(lines, " He said nothing."), False))
        pieces += more
        length += sum(len(w) for w, _ in more)
    return pieces


def pairs(draw, size):
    """A list of facts, and all of them asked for in another order, again and again."""
    count = draw.randint(4, max(5, min(120, size // 80)))
    form, words = draw.randrange(len(FORMS)), draw.random() < 0.3
    facts = [(k, value(draw, words)) for k in keys(draw, count, draw.random() < 0.3)]
    pieces = [p for f in facts for p in fact(form, *f)]
    while sum(len(w) for w, _ in pieces) < size:
        for f in draw.sample(facts, len(facts)):
            pieces += question(form, *f)
    return pieces


def spaced(text):
    """Words, each with the space before it."""
    return re.findall(r"\s*\S+", text)


def copies(draw, prose, size):
    """Passages of prose, each said twice or more, with other prose between."""
    words, at, pieces, length = spaced(" " + prose), 0, [], 0
    while length < size and at < len(words):
        span = words[at:at + draw.randint(8, max(12, size // 14))]
        between = words[at + len(span):at + len(span) + draw.choice([0, 0, 5, 20, len(span)])]
        at += len(span) + len(between)
        turn = [(w, False) for w in span + between]
        for _ in range(draw.choice([1, 1, 2])):
            turn += [(w, i > 1) for i, w in enumerate(span)]
        pieces += turn
        length += sum(len(w) for w, _ in turn)
    return pieces


def repeats(draw, size):
    """Random words, the same again until the end."""
    span = [" " + draw.choice(NOUNS) for _ in range(draw.randint(6, max(8, size // 12)))]
    pieces = [(w, False) for w in span + span[:1]]
    while sum(len(w) for w, _ in pieces) < size:
        pieces += [(w, True) for w in span[1:] + span[:1]]
    return pieces


def needle(draw, lines, tokens, distance, total, others=7):
    """A document of about `total` tokens, a question about it, and the answer, which stands about `distance` tokens
    before the question, once; `others` facts of the same form stand elsewhere.

    lines: sentences that the prose is taken from; tokens(texts): how many tokens each text has."""
    facts = ["".join(w for w, _ in fact(0, k, value(draw))) for k in keys(draw, others + 1)]
    ask, answer = facts[0][:-1].rsplit(" ", 1)
    start = draw.randrange(max(1, len(lines) - total // 4))
    prose = lines[start:start + total // 4]
    lengths, length = tokens(prose), tokens(facts)
    near = sum(draw.random() < distance / total for _ in range(others))  # facts after the one that is asked for
    after, room = distance - sum(length[:1 + near]), total - sum(length)
    behind, before, used = [], [], 0
    for text, n in zip(prose, lengths):
        if used >= room:
            break
        (behind if used < after else before).append(text)
        used += n
    for i, text in enumerate(facts[1:]):
        part = behind if i < near else before
        part.insert(draw.randint(0, len(part)), text)
    return "".join(before + [facts[0]] + behind), ask, " " + answer


# ---- windows of exact lengths -------------------------------------------------------------------


def holds(ids, part):
    return any(ids[i:i + len(part)] == part for i in range(len(ids) - len(part) + 1))


def needle_windows(encode, bos, prose, prompt, count, late=False):
    """[(ids of a prompt, ids that should follow)]: needles at all depths of the prompt, which ends in the question;
    late: the question is not in the prompt but follows it. All prompts, and all that follows, are as long.

    encode(texts): ids of each text, without bos; bos: the ids that begin a prompt."""
    def tokens(texts):
        return [len(ids) for ids in encode(texts)]
    lines, found = sentences(prose), []
    lengths = sorted(tokens([" " + str(n) for n in range(1001, 10000, 450)]))
    usual, turn = lengths[len(lengths) // 2], 0
    while len(found) < count:
        if turn > 20 * count + 100:
            raise ValueError(f"needles: too little prose for prompts of {prompt} tokens")
        distance = 40 + (prompt - 120) * len(found) // max(1, count - 1)
        draw = random.Random(f"needle {turn}")
        turn += 1
        document, question, answer = encode(needle(draw, lines, tokens, distance, prompt + 30))
        ahead, behind = (document, question[-6:] + answer) if late else (document + question, answer)
        kept = ahead[max(0, len(ahead) + len(bos) - prompt):]
        if len(answer) == usual and len(bos + kept) == prompt and holds(kept, answer):
            found.append((bos + kept, behind))
    return found


def copy_windows(encode, bos, prose, prompt, new, count, cue=16):
    """The same of passages: a prompt is prose and then the first `cue` ids of a passage in it, of which the next `new`
    should follow."""
    ids, = encode([prose])
    length, found = prompt - cue - len(bos), []
    for i in range(count):
        draw = random.Random(f"copy {i}")
        at = draw.randrange(len(ids) - length)
        shown = ids[at:at + length]
        start = draw.randrange(length - cue - new)
        passage = shown[start:start + cue + new]
        found.append((bos + shown + passage[:cue], passage[cue:]))
    return found
