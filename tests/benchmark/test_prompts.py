import pytest
import torch

from whence.benchmark.prompts import AnswerRunner, prepare_prompt
from whence.datasets import Sample
from whence.errors import WhenceError

PROMPTS = [
    Sample("a", "Sara has a cat. Ben has a dog. Ben gave some food to his", answer="dog"),
    Sample("b", "Once upon a time, there was", answer="a little girl"),
    Sample("c", "Tom was sad ", answer="."),
]


def compute_plainly(loaded, ids, answer, removed=(), removal="delete"):
    """The log-probability of an answer, one forward pass without padding."""
    model = loaded.model
    embeddings = model.get_input_embeddings().weight
    if removal == "delete":
        ids = [token for at, token in enumerate(ids) if at not in removed]
    if removal == "unknown":
        ids = [9 if at in removed else token for at, token in enumerate(ids)]
    embedded = embeddings[torch.tensor([*ids, *answer])].clone()
    if removal == "mean":
        embedded[list(removed)] = embeddings.mean(0)
    with torch.no_grad():
        chances = model(inputs_embeds=embedded[None]).logits[0].double().log_softmax(-1)
    return sum(float(chances[len(ids) + at - 1, token]) for at, token in enumerate(answer))


def test_prompts_and_answers_are_tokenised_together(stories):
    for sample in PROMPTS:
        prepared = prepare_prompt(stories, sample)
        decoded = stories.tokenizer.decode([*prepared.ids, *prepared.answer])
        gap = "" if sample.answer == "." else " "
        assert decoded.endswith(f"{sample.content.strip()}{gap}{sample.answer}")
        start, end = prepared.offsets[-1]
        assert sample.content[start:end].strip() == sample.content.split()[-1]


def test_tokens_of_a_span_are_marked(stories):
    prepared = prepare_prompt(stories, PROMPTS[0])
    spans = [(11, 14), (26, 29)]  # cat, dog
    marks = prepared.mark(spans)
    texts = [
        "".join(
            PROMPTS[0].content[a:b]
            for (a, b), mark in zip(prepared.offsets, marks, strict=True)
            if mark == number
        ).strip()
        for number in range(2)
    ]
    assert texts == ["cat", "dog"]


@pytest.mark.parametrize("removal", ["delete", "mean", "unknown"])
@pytest.mark.parametrize("keeps", [True, False])
def test_answers_without_tokens_against_single_passes(stories, removal, keeps, monkeypatch):
    monkeypatch.setattr("whence.benchmark.prompts.find_mask_token", lambda _: 9)
    monkeypatch.setattr(AnswerRunner, "_keeps_some", keeps)
    prompts = [prepare_prompt(stories, sample) for sample in PROMPTS]
    answers = [one.answer for one in prompts]
    runner = AnswerRunner(stories, prompts, answers, removal)
    removed = torch.zeros(6, max(len(one.ids) for one in prompts)).bool()
    sets = [(), (), (), (1, 4, 5), (0, len(prompts[1].ids) - 1), (2,)]
    numbers = [0, 1, 2, 0, 1, 2]
    for row, tokens in zip(removed, sets, strict=True):
        row[list(tokens)] = True
    found = runner(removed, torch.tensor(numbers))[:, 0]
    for value, number, tokens in zip(found.tolist(), numbers, sets, strict=True):
        expected = compute_plainly(
            stories, list(prompts[number].ids), answers[number], tokens, removal
        )
        assert value == pytest.approx(expected, abs=2e-3), (number, tokens)


def test_next_tokens_are_those_of_single_passes(stories):
    prompts = [prepare_prompt(stories, sample) for sample in PROMPTS]
    logits = AnswerRunner(stories, prompts, [[5]] * 3).compute_next()
    for one, row in zip(prompts, logits, strict=True):
        with torch.no_grad():
            alone = stories.model(torch.tensor([one.ids])).logits[0, -1]
        assert torch.allclose(row, alone, atol=1e-3)


def test_prompts_that_cannot_be_used_are_refused(stories):
    with pytest.raises(WhenceError, match="more than the 512 that"):
        prepare_prompt(stories, Sample("long", "a cat and " * 300, answer="dog"))
    prompts = [prepare_prompt(stories, PROMPTS[2])]
    with pytest.raises(WhenceError, match="no mask token and none of unknown words"):
        AnswerRunner(stories, prompts, [[5]], "unknown")
    runner = AnswerRunner(stories, prompts, [[5]])
    with pytest.raises(WhenceError, match="Nothing is left"):
        runner(torch.ones(1, runner.ids.shape[1]).bool(), torch.tensor([0]))
