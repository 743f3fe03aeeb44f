"""Text that is generated after images: for each token, words and a map."""

import pytest
import torch

from tests.families import vision_language as models
from tests.families.models import enlarge_weights
from tests.families.vision_language import IMAGE
from whence import Explainer, Explanations, Generation, WhenceError, targets

BOTH = ["input_ids", "pixel_values"]


@pytest.mark.parametrize("name", ["llava", "gemma3", "paligemma"])
def test_each_generated_token_is_explained_as_if_it_were_asked_for(name):
    model, inputs = models.build(name)
    explainer, options = Explainer(model), {"method": "gae", "eos_token_id": None}
    result = explainer.explain_generation(inputs, 3, of=BOTH, **options)
    assert isinstance(result["input_ids"], Generation)
    length = inputs["input_ids"].shape[1]
    assert result["input_ids"].positions.tolist() == [[length, length + 1, length + 2]]
    written = result["input_ids"].target
    more = torch.cat([inputs["input_ids"], written[:, :2]], 1)
    kinds = inputs.get("token_type_ids")
    # The words that PaliGemma writes are of a kind of their own: the prompt does not read them.
    new = torch.full_like(written[:, :2], int(name == "paligemma"))
    grown = {} if kinds is None else {"token_type_ids": torch.cat([kinds, new], 1)}
    asked = {**inputs, "input_ids": more, "attention_mask": torch.ones_like(more), **grown}
    alone = explainer.explain(asked, targets.token(token=int(written[0, 2])), of=BOTH, method="gae")
    assert torch.allclose(alone["pixel_values"].scores, result["pixel_values"].scores[:, 2])
    assert torch.allclose(alone["input_ids"].scores, result["input_ids"].scores[:, 2, :-1])
    generated = model.generate(**inputs, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert torch.equal(generated[:, length:], written)


def test_prompts_with_images_of_different_sizes():
    model = models.build_qwen()
    images = models.make_images((4, 6), (2, 4))
    batch = models.make_prompts([[6], [2]], **models.flatten_images(images))
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    explainer, options = Explainer(model), {"of": BOTH, "method": "gae", "eos_token_id": None}
    whole = explainer.explain_generation(batch, 2, **options)
    for sample, image in enumerate(images):
        count = int(batch["attention_mask"][sample].sum())
        words = batch["input_ids"][sample : sample + 1, :count]
        inputs = {"input_ids": words, "mm_token_type_ids": (words == IMAGE).int()}
        one = explainer.explain_generation(inputs | models.flatten_images([image]), 2, **options)
        assert torch.equal(whole["input_ids"].target[sample], one["input_ids"].target[0])
        (found,) = whole["pixel_values"].images(sample).values()
        assert found.grid == (image.shape[1] // 8, image.shape[2] // 8)
        assert torch.allclose(found.scores, one["pixel_values"].scores)


def test_results_are_saved_and_drawn(tmp_path):
    model, inputs = models.build_llava()
    explainer = Explainer(model)
    result = explainer.explain_generation(inputs, 2, of=BOTH, method="gae", eos_token_id=None)
    result.save(tmp_path / "a.safetensors")
    loaded = Explanations.load(tmp_path / "a.safetensors")
    assert isinstance(loaded["input_ids"], Generation)
    assert torch.equal(loaded["pixel_values"].scores, result["pixel_values"].scores)
    result.save(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count("<title>Map for") == 2
    with pytest.raises(WhenceError, match="must end in"):
        result.save(tmp_path / "a.txt")


def test_several_inputs_are_one_table():
    pytest.importorskip("pandas")
    model, inputs = models.build_llava()
    result = Explainer(model).explain_generation(
        inputs, 2, of=BOTH, method="gae", eos_token_id=None
    )
    table = result.to_pandas()
    assert list(table.input.unique()) == BOTH
    picture = table[table.input == "pixel_values"]
    assert len(picture) == 2 * 16
    scores = result["pixel_values"].scores.flatten().tolist()
    assert picture.score.tolist() == pytest.approx(scores)
    words = table[table.input == "input_ids"]
    assert len(words) == len(result["input_ids"].to_pandas())


def test_blip_reads_its_prompt_without_the_last_token():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2}
    text = {**sizes, "vocab_size": 60, "encoder_hidden_size": 16, "is_decoder": True}
    text |= {"bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    config = transformers.BlipConfig(text_config=text, vision_config=vision, projection_dim=8)
    model = enlarge_weights(transformers.BlipForConditionalGeneration(config))
    ids, pixels = torch.tensor([[9, 5, 6, 3]]), models.make_pixels(1, 3, 32, 32)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    result = Explainer(model).explain_generation(inputs, 3, of=BOTH, method="gae")
    assert ids.tolist() == [[9, 5, 6, 3]]
    read = torch.cat([torch.tensor([[1, 5, 6]]), result["input_ids"].target], 1)
    for step, token in enumerate(result["input_ids"].target[0]):
        with torch.no_grad():
            logits = model(pixel_values=pixels, input_ids=read[:, : 3 + step]).logits
        assert int(logits[0, -1].argmax()) == token
    assert result["pixel_values"].scores.abs().sum() > 0


def test_tokens_of_an_image_are_no_words():
    model, inputs = models.build_llava()

    class Names:
        unk_token, all_special_tokens = "?", ["?"]

        def convert_ids_to_tokens(self, ids):
            return [f" w{n}" for n in ids]

        def convert_tokens_to_string(self, tokens):
            return "".join(tokens)

        def decode(self, ids):
            return "".join(self.convert_ids_to_tokens(ids))

    result = Explainer(model, tokenizer=Names()).explain(
        inputs, targets.token(token=9), of="input_ids", method="gae"
    )
    assert [word.strip() for word, _ in result.words()] == ["w3", "w4", "w5", "w6", "w7"]
    assert result.tokens.strings[0][2:18] == ["image 1"] * 16


def test_a_model_that_writes_image_tokens_is_told_so():
    model, inputs = models.build_llava()
    others = [token for token in range(64) if token != IMAGE]
    with pytest.raises(WhenceError, match="read at once what it has generated"):
        Explainer(model).explain_generation(inputs, 2, of=BOTH, suppress_tokens=others)
