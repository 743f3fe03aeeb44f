import pytest
import torch

from tests import zoo
from tests.saved import save_image_model
from tests.zoo import CASES, HandWrittenViT, build_model
from whence import Explainer, WhenceError, activation_maximization, models
from whence.maximization.image_model import ImageModel


def test_a_folder_and_a_class_by_name(image_model):
    found = activation_maximization(image_model, "dog", steps=2)
    loaded = models.load(image_model)
    same = activation_maximization(loaded, 1, steps=2)
    assert (found.target, found.name) == (1, "dog")
    assert torch.equal(found.pixels, same.pixels)
    logits = Explainer(loaded.model).explain(found.inputs).logits
    assert found.value == pytest.approx(float(logits[0, 1]), rel=1e-5)


def test_normalization_of_the_processor(tmp_path):
    folder = save_image_model(
        tmp_path, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6], rescale_factor=1 / 255
    )
    loaded = models.load(folder)
    found = activation_maximization(loaded, "cat", steps=2)
    prepared = loaded.prepare([found.image]).inputs
    assert (found.inputs - prepared).abs().max() < 0.5 / 255 / 0.4 + 1e-5


def test_a_processor_without_normalization(tmp_path):
    folder = save_image_model(tmp_path, do_normalize=False)
    loaded = models.load(folder)
    found = activation_maximization(loaded, "cat", steps=2)
    assert (found.inputs - loaded.prepare([found.image]).inputs).abs().max() < 0.5 / 255 + 1e-5


def test_size_and_normalization_of_timm_and_torchvision():
    timm = pytest.importorskip("timm")
    model = timm.create_model("deit_tiny_patch16_224", img_size=(32, 64), depth=1)
    subject = ImageModel.resolve(model, None, None, None)
    assert subject.size == (32, 64)
    assert subject.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert subject.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
    given = ImageModel.resolve(model, 48, 0.3, (0.1, 0.2, 0.3))
    assert given.size == (48, 48)
    assert given.mean.flatten().tolist() == pytest.approx([0.3] * 3)
    assert given.std.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert ImageModel.resolve(zoo._torchvision_vit(), None, None, None).size == (32, 32)


def test_text_models_are_refused(text_model):
    said = "explains texts, not images"
    with pytest.raises(WhenceError, match=said):
        activation_maximization(text_model, "positive")
    with pytest.raises(WhenceError, match=said):
        activation_maximization(models.load(text_model), "positive")
    with pytest.raises(WhenceError, match="BertForSequenceClassification reads texts"):
        activation_maximization(build_model(CASES["Bert-sdpa"]), 1)


def test_a_model_without_an_image_size():
    with pytest.raises(WhenceError, match="HandWrittenViT does not tell the size"):
        activation_maximization(HandWrittenViT(), 1)
    found = activation_maximization(HandWrittenViT(), 1, steps=1, image_size=32)
    assert found.pixels.shape == (3, 32, 32)
    with pytest.raises(WhenceError, match="not bool"):
        activation_maximization(True, 1)
