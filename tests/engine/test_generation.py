"""Generation explained from one pass, against one explanation for each token of the cut text."""

import pytest
import torch

from tests.language import (
    STORY,
    make_gpt2,
    make_gpt2_tokenizer,
    make_llama,
    make_llama_tokenizer,
)
from whence import Explainer, WhenceError, targets
from whence.engine.generation import generate_sequences

PROMPTS = ["Tim had a red ball.", "Once upon a time, Sue"]
METHODS = ["whence", "tiba", "gae", "attnlrp", "rollout", "input_x_gradient", "occlusion"]


@pytest.fixture(scope="module")
def llama():
    tokenizer = make_llama_tokenizer()
    return make_llama(tokenizer).double(), tokenizer


@pytest.fixture(scope="module")
def gpt2():
    tokenizer = make_gpt2_tokenizer()
    return make_gpt2(tokenizer).double(), tokenizer


def encode(tokenizer, texts=PROMPTS):
    return tokenizer(list(texts), return_tensors="pt", padding=True)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_text_cut_there(family, method, request):
    model, tokenizer = request.getfixturevalue(family)
    explainer = Explainer(model, tokenizer=tokenizer)
    generation = explainer.explain_generation(encode(tokenizer), 4, method=method)
    for sample, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        start = ids.shape[1]
        assert int(generation.prompt_lengths[sample]) == start
        for step in range(4):
            token = int(generation.target[sample, step])
            alone = explainer.explain({"input_ids": ids}, target=token, method=method)
            row = generation.scores[sample, step]
            scale = float(alone.scores.abs().max())
            assert torch.allclose(row[: start + step], alone.scores[0], atol=1e-6 * scale, rtol=0)
            assert not row[start + step :].any()
            assert float(generation.probabilities[sample, step]) == pytest.approx(
                float(model(ids).logits[0, -1].softmax(-1)[token])
            )
            ids = torch.cat([ids, torch.tensor([[token]])], 1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_generated_is_what_the_model_generates(family, side, request):
    model, tokenizer = request.getfixturevalue(family)
    tokenizer.padding_side = side
    batch = encode(tokenizer)
    tokenizer.padding_side = "left"
    sequences = generate_sequences(model, batch, 5)
    for sample, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        expected = ids
        for _ in range(5):  # greedily, without a cache
            best = model(expected).logits[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat([expected, best], 1)
        length = int(sequences.lengths[sample])
        assert sequences.ids[sample, :length].tolist() == expected[0, :length].tolist()
        assert sequences.mask[sample].tolist() == [1] * length + [0] * (
            len(sequences.mask[0]) - length
        )


def test_an_output_ends_with_the_token_that_ends_it(llama):
    model, tokenizer = llama
    batch = encode(tokenizer)
    free = generate_sequences(model, batch, 6)
    start = int(free.prompt_lengths[0])
    end = int(free.ids[0, start + 2])  # now it ends the first text
    explainer = Explainer(model, tokenizer=tokenizer)
    generation = explainer.explain_generation(batch, 6, eos_token_id=end)
    first = free.ids[0, start : start + 3].tolist()
    stop = first.index(end) + 1
    assert generation.target[0].tolist() == first[:stop] + [-1] * (6 - stop)
    assert generation.positions[0].tolist() == [*range(start, start + stop)] + [-1] * (6 - stop)
    assert not generation.scores[0, stop:].any()
    assert generation.probabilities[0, stop:].isnan().all()
    assert len(generation.classes(0)) == stop
    alone = explainer.explain_generation(encode(tokenizer, PROMPTS[1:]), 6, eos_token_id=end)
    count = len(alone.classes(0))
    length = alone.scores.shape[-1]
    assert torch.allclose(generation.scores[1, :count, :length], alone.scores[0], atol=1e-9)
    assert generation.output(1) == alone.output(0)


def test_tokens_and_texts_are_those_of_prompt_and_output(llama):
    model, tokenizer = llama
    generation = Explainer(model, tokenizer=tokenizer).explain_generation(encode(tokenizer), 3)
    assert [generation.prompt(n) for n in range(2)] == PROMPTS
    for sample in range(2):
        ids = generation.target[sample].tolist()
        names = tokenizer.convert_ids_to_tokens(ids)
        start = int(generation.prompt_lengths[sample])
        assert generation.tokens.strings[sample][start : start + 3] == names
        matrix = generation.matrix(sample)
        assert len(matrix.rows) == 3
    assert Explainer(model).explain_generation(encode(tokenizer), 2).tokens is None


def test_why_each_token_and_not_another(llama):
    model, tokenizer = llama
    explainer = Explainer(model, tokenizer=tokenizer)
    batch = encode(tokenizer, PROMPTS[:1])
    other = 300
    contrast = explainer.explain_generation(batch, 3, "input_x_gradient", against=other)
    plain = explainer.explain_generation(batch, 3, "input_x_gradient")
    whole = {"input_ids": torch.cat([batch["input_ids"], plain.target], 1)}
    start = batch["input_ids"].shape[1]
    for step in range(3):
        target = targets.token(position=start + step - 1, token=other)
        against = explainer.explain(whole, target, method="input_x_gradient").scores[0]
        expected = plain.scores[0, step] - against
        assert torch.allclose(contrast.scores[0, step], expected, atol=1e-6)  # norms are coarse


def test_the_model_is_left_as_it_was(llama):
    model, tokenizer = llama
    model.train()
    try:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.random.get_rng_state()
        settings = model.generation_config.to_dict()
        Explainer(model, tokenizer=tokenizer).explain_generation(encode(tokenizer), 2)
        assert model.training
        assert model.generation_config.to_dict() == settings
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
    finally:
        model.eval()


def test_options_go_to_the_method_or_to_generate(llama):
    model, tokenizer = llama
    explainer = Explainer(model, tokenizer=tokenizer)
    batch = encode(tokenizer)
    torch.manual_seed(0)
    sampled = explainer.explain_generation(batch, 6, do_sample=True, temperature=5.0, start_layer=1)
    assert sampled.settings["start_layer"] == 1
    torch.manual_seed(0)
    again = generate_sequences(model, batch, 6, do_sample=True, temperature=5.0)
    assert sampled.target[0].tolist() == again.ids[0, again.prompt_lengths[0] :][:6].tolist()
    greedy = explainer.explain_generation(batch, 6)
    assert not torch.equal(greedy.target, sampled.target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_new_tokens": 0}, "At least one token is generated, not 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is a whole number"),
        ({"max_new_tokens": 60}, "positions for 64: generate at most"),
        ({"nonsense": 3}, "cannot generate so: .*nonsense"),
        ({"num_return_sequences": 2, "num_beams": 2}, "generated 2 texts for 1 prompt"),
        ({"method": "nonsense"}, "nonsense"),
    ],
)
def test_wrong_requests_are_refused(llama, change, message):
    model, tokenizer = llama
    with pytest.raises(WhenceError, match=message):
        Explainer(model, tokenizer=tokenizer).explain_generation(encode(tokenizer), **change)


def test_wrong_prompts_are_refused(llama):
    model, tokenizer = llama
    explainer = Explainer(model, tokenizer=tokenizer)
    with pytest.raises(WhenceError, match=r"Prompts are token ids, \(batch, tokens\)"):
        explainer.explain_generation(torch.zeros(1, 4))
    with pytest.raises(WhenceError, match=r"Prompts are token ids, \(batch, tokens\)"):
        explainer.explain_generation("Once upon a time")
    with pytest.raises(WhenceError, match="A prompt is empty"):
        explainer.explain_generation(torch.zeros(1, 0, dtype=torch.long))
    long = encode(tokenizer, [STORY])
    with pytest.raises(WhenceError, match=r"has \d+ tokens.*shorten the prompt"):
        explainer.explain_generation({"input_ids": long["input_ids"].repeat(1, 3)})


def test_models_that_do_not_generate_are_refused():
    transformers = pytest.importorskip("transformers")
    with pytest.raises(WhenceError, match="Linear does not generate text"):
        generate_sequences(torch.nn.Linear(2, 2), torch.zeros(1, 2, dtype=torch.long), 2)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    bert = transformers.BertForSequenceClassification(config)
    with pytest.raises(WhenceError, match="BertForSequenceClassification does not generate text"):
        generate_sequences(bert, torch.zeros(1, 2, dtype=torch.long), 2)
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(WhenceError, match="reads the prompt with an encoder"):
        generate_sequences(t5, torch.zeros(1, 2, dtype=torch.long), 2)
