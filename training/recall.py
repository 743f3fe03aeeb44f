"""Write short texts about who has, did or likes what, and questions to complete from them.

    Lily has a red ball. Tom has a blue kite. It was a sunny day. Tom plays with his blue -> kite

`training/stories.py` mixes such texts with stories, so that the model learns to look up a fact in
what it has read, and asks the questions afterwards. One fact of eight, drawn by a hash, and every
fact about a `NEW_NAMES` character are never written for training: the questions are about those.
"""

import random
import re
import zlib
from dataclasses import dataclass

GIRLS = """Lily Lucy Mia Anna Sara Emma Amy Jane Sue Daisy Ella Molly Mary Bella Lisa Zoe
Sophie Lola Rosie Kate Nina Alice Clara Julia Maya Nora Tina Betty Jill Lila Polly Wendy Hannah Eva
Laura Ivy Emily""".split()
BOYS = """Tim Tom Ben Max Jack Sam Joe Bob Billy John Jimmy Mike Leo Fred Charlie Nick Dan Dave
Peter Simon Alex Timmy Tommy Johnny Bobby George Henry Harry Adam Paul Luke Eric James David Danny
Owen Ryan Andy""".split()
NEW_NAMES = {"girl": ["Sally", "Jenny", "Ruby", "Sarah"], "boy": ["Oscar", "Jake", "Toby", "Rob"]}
COLORS = "red blue green yellow pink purple white black orange brown".split()
TOYS = "ball kite doll car drum book boat train puzzle truck robot bike balloon whistle".split()
PETS = "cat dog bird fish frog rabbit duck turtle mouse pony monkey bear goat pig".split()
FOODS = """apple banana cookie pear carrot sandwich cupcake muffin pancake orange peach potato
tomato lemon""".split()
PLACES = """park beach farm zoo forest lake library store school garden river castle market
hill""".split()
FOUND = "coin key shell ring stone feather map leaf stick button crown treasure".split()
BROKEN = "vase window cup plate lamp chair clock toy mirror door".split()
WORN = "hat coat shirt scarf bag dress jacket".split()
FEELINGS = "sad happy scared angry tired excited proud hungry sleepy lonely".split()
FILLER = [
    "The sun was shining.",
    "It was a nice day.",
    "The birds were singing.",
    "It was a sunny day.",
    "Then it started to rain.",
    "The wind was blowing.",
    "They all played together.",
    "They had a lot of fun.",
    "They laughed and ran.",
    "Then it was time to go home.",
    "The sky was clear.",
    "They sat down under a big tree.",
    "Mom smiled at them.",
    "Soon it was dark.",
]


@dataclass(frozen=True)
class Relation:
    """What can be known of a character.

    Attributes:
        values: What can stand for ``{v}``.
        statements: Sentences that state a fact.
        questions: Sentences to complete; what comes after the bar is the answer.
        things: What can stand for ``{t}``, where a fact needs a second word.
    """

    values: list[str]
    statements: list[str]
    questions: list[str]
    things: tuple[str, ...] = ("",)


# Relations of which a text has one at most, since their questions could be mistaken for another's.
ALIKE = ["toy", "colored toy", "found", "gift"]

# N: the name or he, Ns: possessive, his, him: the pronouns, a: the article, M: a second name
RELATIONS = {
    "toy": Relation(
        TOYS,
        [
            "{N} has {a} {v}.",
            "{Ns} favorite toy is {a} {v}.",
            "{N} got {a} {v} for {his} birthday.",
        ],
        [
            "{N} plays with {his}| {v}.",
            "{N} went home to get {his}| {v}.",
            "{Ns} favorite toy is the| {v}.",
            "The {v} belongs to| {N}.",
            "The one who has the {v} is| {N}.",
        ],
    ),
    "colored toy": Relation(
        COLORS,
        ["{N} has {a} {v} {t}.", "{N} got {a} {v} {t}.", "{N} likes to play with {a} {v} {t}."],
        [
            "{N} plays with {his}| {v} {t}.",
            "{N} plays with {his} {v}| {t}.",
            "{N} took out {his}| {v} {t}.",
            "The color of {Ns} {t} is| {v}.",
            "The {v} {t} belongs to| {N}.",
        ],
        tuple(TOYS),
    ),
    "clothes": Relation(
        COLORS,
        ["{N} wears {a} {v} {t}.", "{Ns} {t} is {v}.", "{N} has {a} {v} {t}."],
        [
            "{N} put on {his}| {v} {t}.",
            "The color of {Ns} {t} is| {v}.",
            "The one with the {v} {t} is| {N}.",
        ],
        tuple(WORN),
    ),
    "house": Relation(
        COLORS,
        ["{N} lives in {a} {v} house.", "{Ns} house is {v}."],
        [
            "{N} went back to {his}| {v} house.",
            "The color of {Ns} house is| {v}.",
            "The {v} house belongs to| {N}.",
        ],
    ),
    "pet": Relation(
        PETS,
        ["{N} has a pet {v}.", "{N} lives with {a} {v}.", "{Ns} pet is {a} {v}."],
        [
            "{N} gave some food to {his}| {v}.",
            "{N} hugged {his}| {v}.",
            "{Ns} pet is the| {v}.",
            "The {v} lives with| {N}.",
        ],
    ),
    "food": Relation(
        FOODS,
        ["{N} ate {a} {v}.", "{N} had {a} {v} for lunch.", "{Ns} lunch was {a} {v}."],
        [
            "{N} said that {he} liked the| {v}.",
            "For lunch, {N} had the| {v}.",
            "The one who ate the {v} was| {N}.",
        ],
    ),
    "place": Relation(
        PLACES,
        ["{N} went to the {v}.", "{N} spent the day at the {v}.", "{N} was at the {v}."],
        [
            "{N} is still at the| {v}.",
            "Mom looked for {N} and found {him} at the| {v}.",
            "The one who went to the {v} was| {N}.",
        ],
    ),
    "found": Relation(
        FOUND,
        ["{N} found {a} {v}.", "One day, {N} found {a} shiny {v}."],
        [
            "{N} showed everyone the| {v}.",
            "The one who found the {v} was| {N}.",
            "The {v} was found by| {N}.",
        ],
    ),
    "broke": Relation(
        BROKEN,
        ["{N} broke the {v}.", "{N} fell and broke the {v}."],
        [
            "{N} said sorry for the| {v}.",
            "The one who broke the {v} was| {N}.",
            'Mom asked, "Who broke the {v}?" It was| {N}.',
        ],
    ),
    "feeling": Relation(
        FEELINGS,
        ["{N} was {v}.", "{N} felt very {v}.", "{N} was very {v} that day."],
        ["{N} said that {he} was| {v}.", "The one who felt {v} was| {N}."],
    ),
    "gift": Relation(
        TOYS + FOUND,
        ["{N} gave {a} {v} to {M}.", "{N} gave {M} {a} {v}.", "{M} got {a} {v} from {N}."],
        [
            "The {v} was a gift from| {N}.",
            "Now the {v} belongs to| {M}.",
            "{M} said thank you to| {N}.",
            "{N} gave a gift to| {M}.",
        ],
    ),
}


@dataclass(frozen=True)
class Person:
    """A character."""

    name: str
    kind: str


@dataclass(frozen=True)
class Fact:
    """That a person has, did or likes something."""

    relation: str
    person: Person
    other: Person
    value: str
    thing: str

    def is_held_out(self) -> bool:
        """Whether the fact is kept for questions and never written for training."""
        new = {name for names in NEW_NAMES.values() for name in names}
        words = f"{self.relation} {self.person.name} {self.value}"
        return self.person.name in new or zlib.crc32(words.encode()) % 8 == 0

    def write(self, template: str, *, pronoun: bool = False) -> str:
        """Fill in a template, with the name or with a pronoun."""
        girl = self.person.kind == "girl"
        he, his, him = ("she", "her", "her") if girl else ("he", "his", "him")
        name = self.person.name
        after_article = template.partition("{a} ")[2]
        word = self.value if after_article.startswith("{v}") else after_article
        return template.format(
            N=he.capitalize() if pronoun else name,
            Ns=his.capitalize() if pronoun else f"{name}'s",
            M=self.other.name,
            he=he,
            his=his,
            him=him,
            a="an" if word[:1] in "aeiou" else "a",
            v=self.value,
            t=self.thing,
        )


@dataclass(frozen=True)
class Question:
    """A text with its last words left out.

    Attributes:
        passages: One text for each character.
        filler: Sentences between the passages and the question.
        question: The beginning of the sentence to complete.
        answer: The word that completes it, with the space before it.
        source: The passage that holds the answer.
    """

    passages: list[str]
    filler: str
    question: str
    answer: str
    source: int

    def asks_who(self) -> bool:
        """Whether the answer is a name."""
        return self.answer[1].isupper()

    def write_prompt(self, between: str = " ") -> str:
        """Write everything before the answer, with a space or a new line between passages."""
        parts = [*self.passages, self.filler, self.question]
        return between.join(part for part in parts if part)


def draw_people(chance: random.Random, count: int, new: bool) -> list[Person]:
    names = NEW_NAMES if new else {"girl": GIRLS, "boy": BOYS}
    everyone = [Person(name, kind) for kind in names for name in names[kind]]
    return chance.sample(everyone, count)


def draw_relations(chance: random.Random, people: int) -> list[str]:
    """Draw one to four relations that go together in a text."""
    count = chance.choices([1, 2, 3, 4], [10, 5, 3, 2])[0]
    left_out = chance.sample(ALIKE if people > 1 else ALIKE[:3], 3 if people > 1 else 2)
    left_out += ["gift"] if people == 1 else []
    return chance.sample([name for name in RELATIONS if name not in left_out], count)


def draw_facts(chance: random.Random, name: str, people: list[Person]) -> list[Fact]:
    """Draw a fact of one relation for each person, no two with the same value."""
    relation = RELATIONS[name]
    thing = chance.choice(relation.things)
    values = chance.sample(relation.values, len(people))
    facts = []
    for n, (person, value) in enumerate(zip(people, values, strict=True)):
        if name == "colored toy" and chance.random() < 0.7:
            thing = chance.choice(relation.things)
        facts.append(Fact(name, person, people[n - 1], value, thing))
    return facts


def write_passage(chance: random.Random, facts: list[Fact]) -> str:
    """Write what is known of one character, mostly with the name in the first sentence only."""
    first, person = [], facts[0].person
    if len(facts) > 1 and chance.random() < 0.5:
        first = [f"{person.name} is a little {person.kind}."]
    sentences = list(first)
    for fact in chance.sample(facts, len(facts)):
        template = chance.choice(RELATIONS[fact.relation].statements)
        starts = template.startswith("{N")
        pronoun = starts and bool(sentences) and chance.random() < 0.7
        sentences.append(fact.write(template, pronoun=pronoun))
    return " ".join(sentences)


def draw_filler(chance: random.Random, people: list[Person], excerpts: list[str]) -> str:
    """Draw sentences that have nothing to do with the characters, or none."""
    kind = chance.random()
    if kind < 0.4:
        return ""
    if kind < 0.7 or not excerpts:
        return " ".join(chance.sample(FILLER, chance.randint(1, 3)))
    for _ in range(5):
        excerpt = chance.choice(excerpts)
        if not any(person.name in excerpt for person in people):
            return excerpt
    return ""


def draw_question(
    chance: random.Random, count: int, excerpts: list[str], *, new: bool = False
) -> Question:
    """Draw a question about one of some characters, of a fact that is held out."""
    people = draw_people(chance, count, new)
    while True:
        relations = [draw_facts(chance, name, people) for name in draw_relations(chance, count)]
        asked = chance.choice(chance.choice(relations))
        if asked.is_held_out():
            break
    order = chance.sample(range(count), count)
    passages = [write_passage(chance, [facts[n] for facts in relations]) for n in order]
    template = chance.choice(RELATIONS[asked.relation].questions)
    question, answer = (asked.write(part) for part in template.split("|"))
    return Question(
        passages,
        draw_filler(chance, people, excerpts),
        question,
        re.findall(r" \w+", answer)[0],
        order.index(people.index(asked.person)),
    )


def write_document(chance: random.Random, excerpts: list[str]) -> str:
    """Write a text for training: characters, what is known of them, and completed questions."""
    count = chance.choices([1, 2, 3, 4, 5, 6], [1, 5, 5, 4, 4, 2])[0]
    people = draw_people(chance, count, new=False)
    relations = []
    for name in draw_relations(chance, count):
        facts = draw_facts(chance, name, people)
        while any(fact.is_held_out() for fact in facts):
            facts = draw_facts(chance, name, people)
        relations.append(facts)
    passages = [write_passage(chance, [facts[n] for facts in relations]) for n in range(count)]
    chance.shuffle(passages)
    known = [fact for facts in relations for fact in facts]
    completed = [
        fact.write(chance.choice(RELATIONS[fact.relation].questions).replace("|", ""))
        for fact in chance.sample(known, min(len(known), chance.randint(1, 4)))
    ]
    between = chance.choices([" ", "\n", "\n\n"], [5, 4, 1])[0]
    parts = [*passages, draw_filler(chance, people, excerpts), " ".join(completed)]
    end = chance.choices(["", " The end.", " They were all very happy."], [3, 1, 1])[0]
    return between.join(part for part in parts if part) + end


def rename_characters(chance: random.Random, story: str) -> str:
    """Give the characters of a story other names, the same wherever they are named."""
    renamed: dict[str, str] = {}
    for names in (GIRLS, BOYS):
        met = [name for name in names if re.search(rf"\b{name}\b", story)]
        renamed |= dict(zip(met, chance.sample(names, len(met)), strict=True))
    if not renamed:
        return story
    return re.sub(rf"\b({'|'.join(renamed)})\b", lambda found: renamed[found[0]], story)
