"""Every source of models, and a sentence for each way in which it can fail."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file

from tests.saved import make_photo
from whence import WhenceError
from whence.models import find_device, load
from whence.models.transformers_models import find_task


def find_refusal(*args, **options) -> str:
    """The sentence with which `load` refuses these arguments."""
    with pytest.raises(WhenceError) as caught:
        load(*args, **options)
    return str(caught.value)


@pytest.fixture
def broken(image_model, tmp_path):
    """A copy of a folder with a model, to be damaged."""
    return shutil.copytree(image_model, tmp_path / "model")


def test_a_folder_with_an_image_model(image_model):
    loaded = load(str(image_model), device="cpu")
    assert (loaded.kind, loaded.class_count) == ("image", 3)
    assert loaded.class_names == {0: "cat", 1: "dog", 2: "crane"}
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert not loaded.model.training


def test_a_folder_with_a_text_model(text_model):
    loaded = load(text_model)
    assert loaded.kind == "text"
    prepared = loaded.prepare(["a good film", "awful"])
    assert prepared.inputs["input_ids"].shape == (2, 5)
    assert prepared.notes == [[], []]


def test_the_embedded_models(embedded):
    assert load(None, "image").class_names[0] == "cat"
    assert load(None, "text").class_names[0] == "negative"
    assert re.search("Name a model, or say for which kind of input", find_refusal())


def test_an_installation_without_embedded_models(monkeypatch, tmp_path):
    monkeypatch.setattr("whence.models.folder.EMBEDDED", {"image": tmp_path / "none"})
    assert re.search("carries no model for images", find_refusal(None, "image"))


def test_a_model_of_the_other_kind(text_model):
    assert re.search("explains texts, not images", find_refusal(text_model, "image"))


def test_folders_that_lack_something(broken):
    (broken / "model.safetensors").rename(broken / "kept")
    assert re.search("holds no weights: there is no model.safetensors", find_refusal(broken))
    (broken / "pytorch_model.bin").write_bytes(b"pickle")
    assert re.search(
        r"only as a pickle \(pytorch_model.bin\).*save_pretrained", find_refusal(broken)
    )
    (broken / "kept").rename(broken / "model.safetensors")
    (broken / "preprocessor_config.json").unlink()
    assert re.search("cannot be loaded: .*preprocessor", find_refusal(broken))
    (broken / "config.json").write_text("{oh")
    assert re.search("config.json' is not valid JSON", find_refusal(broken))
    (broken / "config.json").unlink()
    assert re.search("there is no config.json", find_refusal(broken))


def test_damaged_weights(broken):
    content = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[:-100])
    assert re.search("cannot be loaded", find_refusal(broken))


def test_weights_without_a_classifier(broken):
    from transformers import ViTModel

    ViTModel.from_pretrained(broken).save_pretrained(broken)
    assert re.search(
        "is not a trained classifier: its weights lack 'classifier.bias' and 1 more",
        find_refusal(broken),
    )


def test_configurations_of_other_things(broken):
    config = json.loads((broken / "config.json").read_text())
    for change, message in (
        ({"model_type": "nonsense"}, "cannot be loaded: .*nonsense"),
        ({"model_type": "t5", "architectures": ["T5Model"]}, "cannot be loaded|neither a"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "m.C"}}, "needs code of its own"),
    ):
        (broken / "config.json").write_text(json.dumps({**config, **change}))
        assert re.search(message, find_refusal(broken))


def test_names_that_can_only_be_folders(tmp_path):
    (tmp_path / "file").write_text("")
    assert re.search("is a file; name the folder", find_refusal(tmp_path / "file"))
    for name in ("./none", "/none", "a/b/c", tmp_path / "none"):
        assert re.search("There is no folder", find_refusal(name))
    assert re.search("The model's name is empty", find_refusal(" "))


def _raises(error: Exception):
    def model_info(*_, **__):
        raise error

    return model_info


def test_the_hub(monkeypatch):
    from huggingface_hub import errors

    def answer(kind):
        error = kind.__new__(kind)
        Exception.__init__(error, "no")
        return _raises(error)

    for kind, message in (
        (ConnectionError, "the hub cannot be reached. Without a network, name a folder"),
        (errors.RepositoryNotFoundError, "neither a folder nor a public model on the hub"),
        (errors.GatedRepoError, "only to those who agreed to its terms"),
        (errors.OfflineModeIsEnabled, "switched off"),
        (errors.HFValidationError, "nor a possible name of a model"),
    ):
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer(kind))
        assert re.search(message, find_refusal("whence-nobody/no-such-model"))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer(ConnectionError))
    assert re.search("the hub cannot be reached", find_refusal("timm:vit_tiny_patch16_224"))


def test_kinds_are_told_by_the_configuration():
    def config(**fields):
        return type("Config", (), fields)()

    def find(*architectures):
        return find_task(config(architectures=list(architectures)))

    assert find("DeiTForImageClassificationWithTeacher") == "ImageClassification"
    assert find("BertForSequenceClassification") == "SequenceClassification"
    assert find("LlamaForCausalLM") == find("GPT2LMHeadModel") == "CausalLM"
    assert find("BertForMaskedLM") == "MaskedLM"
    assert find("DebertaV2ForTokenClassification") == "TokenClassification"
    assert find_task(config(architectures=None, image_size=224)) == "ImageClassification"
    assert find_task(config()) == "SequenceClassification"


def test_a_timm_model_with_a_weights_file(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(5)
    model = timm.create_model("test_vit", num_classes=7).eval()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    loaded = load("timm:test_vit", weights=tmp_path / "w.safetensors")
    assert (loaded.kind, loaded.class_count, loaded.class_names) == ("image", 7, {})
    prepared = loaded.prepare([make_photo(300, 200)])
    with torch.no_grad():
        assert torch.equal(loaded.model(prepared.inputs), model(prepared.inputs))
    assert re.search(r"is not a safetensors file", find_refusal("timm:test_vit", weights=__file__))
    assert re.search(
        "There is no weights file", find_refusal("timm:test_vit", weights=tmp_path / "none")
    )
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign")
    assert re.search(
        "of another model: it lacks", find_refusal("timm:test_vit", weights=tmp_path / "foreign")
    )
    save_file({**model.state_dict(), "x": torch.zeros(1)}, tmp_path / "more")
    assert re.search(
        "of another model: it has 'x'", find_refusal("timm:test_vit", weights=tmp_path / "more")
    )
    save_file({**model.state_dict(), "cls_token": torch.zeros(1)}, tmp_path / "odd")
    assert re.search(
        "it differs in 'cls_token'", find_refusal("timm:test_vit", weights=tmp_path / "odd")
    )


def test_pickled_weights_are_refused(tmp_path):
    torch.save({}, tmp_path / "w.pth")
    assert re.search(
        "Pickled weights can run code", find_refusal("timm:test_vit", weights=tmp_path / "w.pth")
    )


def test_timm_names(tmp_path):
    pytest.importorskip("timm")
    assert re.search(
        "timm has no model 'vit_tin'. Did you mean one of", find_refusal("timm:vit_tin")
    )
    assert re.search("timm has no model ''", find_refusal("timm:"))


def test_timm_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    assert re.search(r"needs timm: pip install 'whence\[timm\]'", find_refusal("timm:test_vit"))


def test_a_torchvision_model_with_a_weights_file(tmp_path, monkeypatch):
    models = pytest.importorskip("torchvision.models")
    assert re.search(
        "needs a weights file in safetensors: torchvision's own are",
        find_refusal("torchvision:vit_b_16"),
    )
    assert re.search("torchvision has no model 'vit'", find_refusal("torchvision:vit"))

    def small(name, weights=None, num_classes=1000):
        return models.VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=num_classes)

    monkeypatch.setattr(models, "get_model", small)
    for count in (5, 1000):
        save_file(small("", num_classes=count).state_dict(), tmp_path / "w.safetensors")
        loaded = load("torchvision:vit_b_16", weights=tmp_path / "w.safetensors")
        assert loaded.class_count == count
        assert loaded.prepare([make_photo()]).inputs.shape == (1, 3, 32, 32)
    assert loaded.class_names[281] == "tabby"


def test_torchvision_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision.models", None)
    assert re.search(r"pip install 'whence\[torchvision\]'", find_refusal("torchvision:vit_b_16"))


def test_weights_for_a_folder(image_model):
    assert re.search(
        "is for timm:NAME and torchvision:NAME only",
        find_refusal(image_model, weights="w.safetensors"),
    )


def test_devices():
    assert find_device("cpu") == torch.device("cpu")
    for name in ("nonsense", "cuda:99", "meta"):
        with pytest.raises(WhenceError, match=r"There is no device|computes nothing"):
            find_device(name)


def test_models_that_write_are_refused_with_a_way(tmp_path):
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}'
    )
    with pytest.raises(WhenceError, match=r"writes another.*targets.token.*of='input_ids'"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}'
    )
    with pytest.raises(WhenceError, match=r"writes about images: whence generate PROMPT --image"):
        load(tmp_path)
