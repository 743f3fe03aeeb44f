"""The embedded language model tells stories and looks up what it has read."""

from pathlib import Path

import pytest

import whence
from whence import Explainer

FOLDER = Path(whence.__file__).parent / "demo" / "stories"
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def stories():
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER, output_loading_info=True
    )
    assert not any(loading.values())
    return model.float().eval(), transformers.AutoTokenizer.from_pretrained(FOLDER)


def complete(stories, prompt: str, count: int) -> str:
    """Greedily continue a prompt by some tokens."""
    model, tokenizer = stories
    batch = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**batch, max_new_tokens=count, do_sample=False)
    return tokenizer.decode(ids[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def test_it_tells_the_same_story_each_time(stories):
    told = complete(stories, "Once upon a time", 40)
    assert told == complete(stories, "Once upon a time", 40)
    assert told.startswith(", there was a")
    assert len(set(told.split())) > 20


def test_stories_come_to_an_end(stories):
    model, tokenizer = stories
    batch = tokenizer("Lily has a red ball. Tom has a blue kite. Tom plays", return_tensors="pt")
    ids = model.generate(**batch, max_new_tokens=200, do_sample=False)
    assert ids[0, -1] == tokenizer.eos_token_id


def test_texts_come_back_from_their_tokens(stories):
    _, tokenizer = stories
    text = 'Tom has a kite.\nLily said, "Is that a zebra?" Yes, naïve 123!'
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]).removeprefix(" ") == text


@pytest.mark.parametrize(
    ("template", "question"),
    [
        ("{a} has a red {x}. {b} has a blue {y}.", "{a} plays with her red"),
        ("{b} has a {y}. {a} has a {x}. It was a sunny day.", "{a} plays with her"),
        (
            "{a} got a {x} for her birthday.\n{b} got a {y} for her birthday.",
            "{a}'s favorite toy is the",
        ),
    ],
)
def test_who_has_what_is_looked_up(stories, template, question):
    """The answer follows the facts when they are exchanged."""
    people = [("Lily", "Anna"), ("Mia", "Sue"), ("Emma", "Lucy"), ("Molly", "Jane")]
    things = [("ball", "kite"), ("drum", "boat"), ("doll", "train"), ("truck", "puzzle")]
    for (a, b), (x, y) in zip(people, things, strict=True):
        for first, second in ((x, y), (y, x)):
            prompt = f"{template} {question}".format(a=a, b=b, x=first, y=second)
            assert complete(stories, prompt, 1) == f" {first}"


def test_an_explanation_finds_the_fact(stories):
    model, tokenizer = stories
    prompt = "Sara has a cat. Ben has a dog. Mia has a bird. Ben gave some food to his"
    batch = tokenizer(prompt, return_tensors="pt")
    result = Explainer(model, tokenizer=tokenizer).explain(batch)
    words = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    best = result.scores[0].topk(3).indices.tolist()
    assert tokenizer.decode(result.target[0]) == " dog"
    assert words.index("Ġdog") in best
