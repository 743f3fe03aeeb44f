"""tam against its formula in plain loops."""

import numpy as np
import pytest
import torch

from tests.families import vision_language as models
from tests.families.vision_language import END, IMAGE, START
from tests.zoo import CASES, build_model
from whence import Explainer, WhenceError, targets
from whence.methods.tam import compute_activations, filter_ranks

BOTH = ["input_ids", "pixel_values"]
STOP = 50


class Names:
    """A tokenizer that knows which tokens are special."""

    unk_token, all_special_tokens, all_special_ids = "?", ["?"], [START, END, STOP]

    def convert_ids_to_tokens(self, ids):
        return [f" w{n}" for n in ids]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)

    def decode(self, ids):
        return "".join(self.convert_ids_to_tokens(ids))


def filter_plainly(picture: np.ndarray) -> np.ndarray:
    padded, filtered = np.pad(picture, 1, mode="reflect"), np.zeros_like(picture)
    for i in range(picture.shape[0]):
        for j in range(picture.shape[1]):
            values = sorted(padded[i : i + 3, j : j + 3].flatten())
            mean, deviation = np.mean(values), np.std(values)
            if mean <= 0:
                continue
            if deviation < 1e-12 * mean:
                filtered[i, j] = values[4]
                continue
            weights = [np.exp(-(k**2) / (2 * (deviation / mean) ** 2)) for k in range(-4, 5)]
            filtered[i, j] = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    return filtered


def compute_plainly(logits, ids, end, at, token):
    """Image scores before the filter, and the scores of words by their positions."""
    images = [n for n, one in enumerate(ids) if one == IMAGE]
    start = images[-1] + 1
    while start < end and ids[start] in Names.all_special_ids:
        start += 1
    stop = start
    while stop < end - 1 and ids[stop] not in Names.all_special_ids:
        stop += 1
    words = [(n, n, ids[n]) for n in range(start, stop)]
    if words:
        words[0] = (start, start, int(np.argmax(logits[start])))
    words += [(n, n - 1, ids[n]) for n in range(end, at + 1)]
    own = np.array([max(logits[n, token], 0) for n in images])
    total, interference = 1e-8, np.zeros(len(images))
    for position, place, of in words:
        if ids[position] != token:
            weight = max(logits[place, token], 0)
            total += weight
            interference += weight * np.array([max(logits[n, of], 0) for n in images])
    interference /= total
    if (interference**2).sum() > 0:
        scale = (own * interference).sum() / (interference**2).sum()
        own = np.maximum(own - scale * interference, 0)
    found = [max(logits[place, token], 0) for _, place, _ in words]
    every = [*own, *found]
    lowest, highest = min(every), max(every)
    own = (own - lowest) / (highest - lowest)
    found = {w[0]: (x - lowest) / (highest - lowest) for w, x in zip(words, found, strict=True)}
    return own, found


def check(model, inputs, written: int, shapes: list[tuple[int, int]], prompt: list[int]) -> float:
    """Compare each written token of each sample with plain loops; return the largest score."""
    length, batch = inputs["input_ids"].shape[1], len(prompt)
    asked = [
        targets.token(
            [end - 1 + step for end in prompt],
            [int(inputs["input_ids"][n, end + step]) for n, end in enumerate(prompt)],
            prompt=prompt,
        )
        for step in range(written)
    ]
    result = Explainer(model, tokenizer=Names()).explain(
        inputs, classes=asked, of=BOTH, method="tam"
    )
    with torch.no_grad():
        logits = model(**inputs).logits.numpy()
    for sample in range(batch):
        ids, end = inputs["input_ids"][sample].tolist(), prompt[sample]
        (image,) = result["pixel_values"].images(sample).values()
        assert image.grid == shapes[sample]
        for step in range(written):
            own, words = compute_plainly(logits[sample], ids, end, end + step - 1, ids[end + step])
            expected = filter_plainly(own.reshape(shapes[sample]))
            assert np.allclose(image.scores[0, step].reshape(shapes[sample]), expected, atol=1e-9)
            by_word = [words.get(n, 0.0) for n in range(length)]
            found = result["input_ids"].scores[sample, step].numpy()
            assert np.allclose(found, by_word, atol=1e-9)
    return float(result["pixel_values"].scores.max())


def test_each_written_token_is_as_in_plain_loops():
    model = models.build_qwen()
    images = models.make_images((8, 6), (4, 6))
    prompts = [
        [3, START, *[IMAGE] * 12, END, 5, 6, 7, 6, STOP, 9, 10, 11, 6, 13, 7],
        [3, START, *[IMAGE] * 6, END, 5, 6, STOP, 9, 10, 14, 15, 16],
    ]
    ids = torch.zeros(2, len(prompts[0]), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for n, row in enumerate(prompts):
        ids[n, : len(row)], mask[n, : len(row)] = torch.tensor(row), 1
    inputs = {"input_ids": ids, "attention_mask": mask, **models.flatten_images(images)}
    inputs["mm_token_type_ids"] = (ids == IMAGE).int()
    assert check(model, inputs, 3, [(4, 3), (2, 3)], [len(row) - 3 for row in prompts]) > 0.1


def test_generated_tokens_have_the_prompt_before_them():
    model, inputs = models.build_llava()
    explainer = Explainer(model, tokenizer=Names())
    generated = explainer.explain_generation(inputs, 3, of=BOTH, method="tam", eos_token_id=None)
    written = generated["input_ids"].target
    ids = torch.cat([inputs["input_ids"], written], 1)
    whole = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert check(model, whole, 3, [(4, 4)], [inputs["input_ids"].shape[1]]) > 0.1
    end = inputs["input_ids"].shape[1]
    asked = targets.token(end + 1, int(written[0, 2]), prompt=end)
    alone = explainer.explain(whole, asked, of=BOTH, method="tam")
    assert torch.allclose(alone["pixel_values"].scores, generated["pixel_values"].scores[:, 2])
    assert torch.allclose(alone["input_ids"].scores, generated["input_ids"].scores[:, 2])


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "paligemma", "llava_next"])
def test_other_families(name):
    model, inputs = models.build(name)
    result = Explainer(model, tokenizer=Names()).explain(
        inputs, targets.token(), of=BOTH, method="tam"
    )
    picture = result["pixel_values"].scores
    assert picture.max() > 0
    assert 0 <= picture.min() <= picture.max() <= 1
    assert 0 <= result["input_ids"].scores.min() <= result["input_ids"].scores.max() <= 1


def test_the_filter_is_as_in_plain_loops():
    random = np.random.default_rng(0).random((3, 6, 5))
    random[0, :3] = 0
    random[1] = 0.25  # all alike: their median
    random[2, 2:] = 1e-9
    found = filter_ranks(torch.tensor(random))
    assert np.allclose(found, [filter_plainly(one) for one in random], atol=1e-12)
    assert torch.equal(filter_ranks(torch.tensor([[0.5]])), torch.tensor([[0.5]]))
    line = np.array([[0.2, 0.9, 0.1]])
    assert np.allclose(filter_ranks(torch.tensor(line)), filter_plainly(line))


def test_what_words_explain_is_taken_out():
    # Two image tokens, one word. The word's map is twice that of token 0, which leaves nothing.
    logits = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 0.0]])
    images = torch.tensor([0, 1])
    found, words = compute_activations(logits, images, 0, [2], [(2, 1)])
    assert torch.allclose(found, torch.zeros(2), atol=1e-6)
    assert words.tolist() == [1.0]
    alone, none = compute_activations(logits, images, 0, [], [])
    assert alone.tolist() == [0.0, 1.0]
    assert none.tolist() == []
    flat, _ = compute_activations(torch.full((3, 2), -1.0), images, 0, [2], [(2, 1)])
    assert flat.tolist() == [0.0, 0.0]


def test_what_has_no_image_tokens_is_refused():
    case = CASES["ViTForImageClassification-sdpa"]
    with pytest.raises(
        WhenceError, match="'tam' explains image prompts only, and this input is an i"
    ):
        Explainer(build_model(case)).explain(case.inputs(), method="tam")
    model, inputs = models.build_llava()
    words = {"input_ids": torch.tensor([[3, 4, 5]])}
    with pytest.raises(
        WhenceError, match="'tam' explains image prompts only, and this input is a t"
    ):
        Explainer(model).explain(words, targets.token(), method="tam")
    model, inputs = models.build_mllama()
    with pytest.raises(WhenceError, match="an image as tokens between their words"):
        Explainer(model).explain(inputs, targets.token(), of="pixel_values", method="tam")


@pytest.mark.parametrize(
    ("target", "against", "message"),
    [
        (targets.span(18, 20), None, "this target is none"),
        (targets.token(token=5), 6, "a token against another: leave out against="),
        (lambda outputs, _: outputs.logits[:, -1, 5], None, "single token of a vision-language"),
    ],
)
def test_what_is_no_single_token_is_refused(target, against, message):
    model, inputs = models.build_llava()
    with pytest.raises(WhenceError, match=message):
        Explainer(model).explain(inputs, target, against, of="pixel_values", method="tam")
