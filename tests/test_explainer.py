"""The explainer: what it refuses, which models it takes, and numbers that are stable."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from tests.real import load_real_vit, read_photo
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError
from whence.tracing import Intervention, record
from whence.tracing.ops.guard import Guard

PHOTOS = ("ILSVRC2012_val_00000962.JPEG", "ILSVRC2012_val_00002070.JPEG")


def assert_refused(message: str, inputs, model: nn.Module | None = None, **options) -> None:
    with pytest.raises(WhenceError, match=message):
        Explainer(model or HandWrittenViT()).explain(inputs, **options)


def test_a_model_without_attention():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5))
    assert_refused(
        "No attention was seen in Sequential.*attn_implementation", make_images(32, 32), model
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite(bad):
    pixels = make_images(32, 32)
    pixels[1, 2, 3, 4] = bad
    assert_refused("The inputs hold NaN or infinite values", pixels)


def test_a_model_that_gives_nan():
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.bias.fill_(float("nan"))
    assert_refused("gives NaN or infinite logits", make_images(32, 32), model)


@pytest.mark.parametrize("memory", [0, -1, float("nan"), float("inf"), "2", True])
@pytest.mark.parametrize("method", ["tiba", "occlusion"])
def test_what_is_no_amount_of_memory(memory, method):
    assert_refused(
        "memory is a number of gibibytes", make_images(32, 32), memory=memory, method=method
    )


def test_inputs_on_another_device():
    assert_refused(
        r"inputs are on meta but the model is on cpu.*to\('cpu'\)", make_images(32, 32).to("meta")
    )


def test_an_empty_batch():
    assert_refused(r"The batch is empty: its shape is \(0, 3, 32, 32\)", torch.zeros(0, 3, 32, 32))
    ids = torch.zeros(2, 0, dtype=torch.long)
    assert_refused("The batch is empty", {"input_ids": ids}, build_model(CASES["Bert-sdpa"]))


def test_one_image_without_a_batch():
    assert_refused(r"shape \(3, 32, 32\).*inputs\[None\]", make_images(32, 32)[0])
    assert_refused(r"A batch is needed, but the input has shape \(7,\)", torch.zeros(7))


@pytest.mark.parametrize("inputs", ["a photo.jpg", None, [[1, 2]], 3])
def test_inputs_that_are_no_tensors(inputs):
    assert_refused(r"Inputs are a tensor, or a mapping of tensors", inputs)


def test_a_mapping_without_tensors():
    assert_refused('hold no tensor.*return_tensors="pt"', {"input_ids": [[1, 2, 3]]})


def test_classes_that_do_not_exist():
    assert_refused("Class 5 does not exist: the model has 5 classes", make_images(32, 32), target=5)
    model = HandWrittenViT()
    with pytest.raises(WhenceError, match=r"no class 'kat'. The model has 'cat'"):
        Explainer(model, class_names=["cat", "dog"]).explain(make_images(32, 32), target="kat")


def test_what_is_no_model_or_layout():
    with pytest.raises(WhenceError, match=r"torch.nn.Module is needed, not str"):
        Explainer("bert-base")
    with pytest.raises(WhenceError, match=r"layout is a whence.Layout"):
        Explainer(HandWrittenViT(), layout={"grid": (4, 4)})


def test_logits_of_another_shape():
    class Tokens(HandWrittenViT):
        def forward(self, image):
            return super().forward(image)[:, None]

    assert_refused(
        r"gave \(3, 1, 5\) for 3 input\(s\).*targets.token", make_images(32, 32), Tokens()
    )
    picked = Explainer(Tokens(), output=lambda returned: returned[:, 0])
    assert picked.explain(make_images(32, 32)).scores.shape == (3, 16)


def test_returned_values_without_logits():
    class Sets(HandWrittenViT):
        def forward(self, image):
            return {"answer": super().forward(image)}

    assert_refused("returned dict, in which whence finds no logits", make_images(32, 32), Sets())
    with pytest.raises(WhenceError, match=r"must return the logits, not str"):
        Explainer(Sets(), output=lambda _: "logits").explain(make_images(32, 32))


@pytest.mark.parametrize("wrap", [tuple, list, dict])
def test_logits_are_found_in_what_a_model_returns(wrap):
    class Wraps(HandWrittenViT):
        def forward(self, image):
            logits = super().forward(image)
            return {"logits": logits} if wrap is dict else wrap([logits, "more"])

    assert Explainer(Wraps()).explain(make_images(32, 32)).logits.shape == (3, 5)


def test_errors_of_the_model_itself_come_through():
    with pytest.raises(TypeError, match=r"unexpected keyword"):
        Explainer(HandWrittenViT()).explain({"image": make_images(32, 32), "size": torch.ones(1)})


def test_dropout_in_training_mode_is_left_out():
    case = CASES["Bert-sdpa"]
    model = build_model(case).train()
    assert model.config.hidden_dropout_prob > 0
    first, second = (Explainer(model).explain(make_texts()) for _ in range(2))
    assert model.training
    assert torch.equal(first.scores, second.scores)
    with torch.no_grad():
        assert torch.allclose(first.logits, model.eval()(**make_texts()).logits, atol=1e-6)


def test_embeddings_instead_of_ids():
    model = build_model(CASES["Bert-sdpa"])
    inputs = make_texts()
    by_ids = Explainer(model).explain(inputs)
    embeddings = model.get_input_embeddings()(inputs.pop("input_ids")).detach()
    by_embeddings = Explainer(model).explain({"inputs_embeds": embeddings, **inputs})
    assert torch.allclose(by_ids.scores, by_embeddings.scores)


def test_stable_is_the_same_in_float32_and_float64_on_real_photos(data):
    model = load_real_vit(data)
    pixels = torch.stack([read_photo(data, name) for name in PHOTOS])
    double = (
        Explainer(load_real_vit(data).double()).explain(pixels, classes=2, method="tiba").scores
    )
    single = Explainer(model).explain(pixels.float(), classes=2, method="tiba").scores
    assert (single >= 0).all()
    largest = double.amax(-1, keepdim=True)
    assert ((single - double).abs() / largest).max() < 1e-4


def test_sequence_first_models_do_not_mix_samples():
    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=False)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.encoder(x.transpose(0, 1))[0])

    model, x = SequenceFirst().double(), torch.randn(3, 7, 16, dtype=torch.float64)
    for rule_set in ("stable", "reference", "paper"):
        options = {"target": 0, "method": "tiba", "rules": rule_set}
        together = Explainer(model).explain(x, **options).scores
        for i in range(3):
            alone = Explainer(model).explain(x[i : i + 1], **options).scores[0]
            assert torch.allclose(together[i], alone, rtol=1e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["GPT2", "Llama"])
def test_decoders_that_classify_are_read_from_their_last_token(family, attention):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
        "Llama": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
        },
    }[family]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=100, num_labels=3, pad_token_id=0, **sizes
    )
    model = (
        getattr(transformers, f"{family}ForSequenceClassification")
        ._from_config(config, attn_implementation=attention)
        .eval()
    )
    inputs = make_texts()
    inputs["input_ids"] = inputs["input_ids"] * inputs["attention_mask"]
    result = Explainer(model).explain(inputs, method="gae", keep_evidence=True)
    with torch.no_grad():
        assert torch.allclose(result.logits, model(**inputs).logits, atol=1e-5)
    last = inputs["attention_mask"].sum(1) - 1
    assert torch.equal(result.evidence.pooling.argmax(1), last)
    for i, end in enumerate(last.tolist()):
        assert (result.scores[i, : end + 1] >= 0).all()
        assert result.scores[i].max() > 0
        assert (result.scores[i, end + 1 :] == 0).all()


def test_rules_that_change_nothing_warn():
    case = CASES["ViTForImageClassification-sdpa"]
    explainer = Explainer(build_model(case))
    with pytest.warns(UserWarning, match=r"'whence' propagates no relevance.*do: lrp, .*tiba"):
        explainer.explain(case.inputs(), rules="reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(case.inputs(), method="tiba", rules="reference")
        kept = explainer.explain(case.inputs(), rules="reference", keep_evidence=True).evidence
    assert len(kept.relevance) == len(kept.attention)


class MaskedOnce(nn.Module):
    """Takes one mask for all samples; the padding is read by the classifier."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        seen = attention_mask[:, None].bool()
        x = x + torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)
        return self.head(x.mean(1))


def test_padding_that_is_the_same_for_all_samples():
    torch.manual_seed(0)
    explainer, ids = Explainer(MaskedOnce()), torch.arange(12).reshape(3, 4) % 9
    mask = torch.tensor([[1, 1, 1, 0]])
    for memory in (None, 1e-9):
        request = {"method": "input_x_gradient", "memory": memory}
        once = explainer.explain({"input_ids": ids, "attention_mask": mask}, **request)
        each = {"input_ids": ids, "attention_mask": mask.expand(3, -1)}
        assert torch.allclose(once.scores, explainer.explain(each, **request).scores, atol=1e-6)
        assert not once.scores[:, -1].any()


def test_attention_maps_of_a_forward_pass():
    case = CASES["ViTForImageClassification-sdpa"]
    found = Explainer(build_model(case)).attention(case.inputs())
    kept = Explainer(build_model(case)).explain(case.inputs(), keep_evidence=True).evidence
    assert (found.grid, found.prefix, found.tokens) == ((4, 4), 1, None)
    for ours, expected in zip(found.maps, kept.attention, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_an_explainer_can_be_copied_and_sent_to_another_process(duplicate, programs):
    case = CASES["ViTForImageClassification-sdpa"]
    explainer = Explainer(build_model(case), compile=True)
    expected = explainer.explain(case.inputs(), method="gae").scores
    other = duplicate(explainer)
    assert other.compiles
    assert other.model is not explainer.model
    found = other.explain(case.inputs(), method="gae").scores
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert len(programs) == 2


def test_a_method_of_many_passes_cannot_be_compiled():
    with pytest.raises(WhenceError, match="'rise' runs the model many times"):
        Explainer(HandWrittenViT()).compile(make_images(32, 32), method="rise")


def test_a_recorded_pass_is_recorded_again_with_the_same_guard():
    guard = Guard(exact=True)
    trace = record(HandWrittenViT(), (make_images(32, 32),), {}, 0, guard=guard)
    assert trace.rerecord(Intervention(follow_constants=True)).guard is guard


@pytest.mark.parametrize("rule_set", ["balanced", "attnlrp"])
def test_a_gradient_is_never_taken_for_relevance(rule_set):
    with pytest.raises(WhenceError, match=f"'{rule_set}' reads gradients"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="tiba", rules=rule_set)
