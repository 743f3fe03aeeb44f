"""Detection and dense models: their own decision is a box, or the places of a class."""

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.docs.hub import save_encoder_decoder_detector
from tests.saved import ANIMALS, make_photo, save_dense_model
from whence import WhenceError, WhenceWarning, compare, explain, targets
from whence.models import load

METHOD = {"method": "input_x_gradient"}


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return load(save_dense_model(tmp_path_factory.mktemp("detector")))


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return load(save_dense_model(tmp_path_factory.mktemp("segmenter"), "SemanticSegmentation"))


def read_boxes(detector, photo):
    with torch.no_grad():
        return detector.model(detector.prepare([photo]).inputs)


def test_the_most_confident_box_is_explained(detector):
    photo = make_photo()
    chances = read_boxes(detector, photo).logits[0].softmax(-1)[:, :-1]
    query, label = divmod(int(chances.argmax()), len(ANIMALS))
    result = explain(photo, detector, **METHOD)
    assert result.target_names == [f"{ANIMALS[label]} (box {query})"]
    assert result.photos[0].image.size == photo.size
    ranked = chances.amax(1).argsort(descending=True)[:2].tolist()
    two = explain(photo, detector, classes=2, **METHOD)
    names = [f"{ANIMALS[int(chances[n].argmax())]} (box {n})" for n in ranked]
    assert two.target_names == [names]


def test_a_class_is_its_most_confident_box(detector):
    photo = make_photo()
    logits = read_boxes(detector, photo).logits[0]
    query = int(logits.softmax(-1)[:, 1].argmax())
    result = explain(photo, detector, "dog", against="cat", **METHOD)
    assert result.target_names == [f"dog (box {query}) rather than cat (box {query})"]
    expected = logits[query, 1] - logits[query, 0]
    assert torch.allclose(result.values, expected, rtol=1e-4, atol=1e-6)
    both = explain(photo, detector, classes=["dog", targets.box(3, "cat")], **METHOD)
    assert both.target_names == [[f"dog (box {query})", "cat (box 3)"]]
    with pytest.raises(WhenceError, match=r"There is no class 'cow'\. The model has 'cat'"):
        explain(photo, detector, "cow", **METHOD)


def test_a_class_is_all_its_places(segmenter):
    photo = make_photo()
    with torch.no_grad():
        logits = segmenter.model(segmenter.prepare([photo]).inputs).logits[0]
    decided = logits.argmax(0)
    counts = decided.flatten().bincount(minlength=len(ANIMALS))
    most = int(counts.argmax())
    result = explain(photo, segmenter, **METHOD)
    assert result.target_names == [f"{ANIMALS[most]} ({counts[most]} places)"]
    other = (most + 1) % len(ANIMALS)
    against = explain(photo, segmenter, ANIMALS[most], against=ANIMALS[other], **METHOD)
    inside = decided == most
    expected = logits[most][inside].mean() - logits[other][inside].mean()
    assert torch.allclose(against.values, expected, rtol=1e-4, atol=1e-6)
    none = int(counts.argmin())
    if not counts[none]:
        with pytest.raises(WhenceError, match=f"gives no place .* to '{ANIMALS[none]}'"):
            explain(photo, segmenter, ANIMALS[none], **METHOD)


def test_depth_by_folder(tmp_path):
    loaded = load(save_dense_model(tmp_path, "DepthEstimation"))
    result = explain(make_photo(), loaded, **METHOD)
    assert result.target_names[0].startswith("depth (")
    with pytest.raises(WhenceError, match="tells the depth of a place and no classes"):
        explain(make_photo(), loaded, "cat", **METHOD)
    with pytest.raises(WhenceError, match="tells the depth of places and no classes"):
        explain(make_photo(), loaded, classes=2, **METHOD)


def test_pipelines_of_detection(detector):
    processor = detector.preprocessor.processor
    pipeline = transformers.pipeline(
        "object-detection", model=detector.model, image_processor=processor, threshold=0.0
    )
    best = max(pipeline(make_photo()), key=lambda one: one["score"])
    result = explain(make_photo(), pipeline, **METHOD)
    assert result.target_names[0].startswith(best["label"])
    left, top, right, bottom = result.areas[0].bounds
    found = [left * 60, top * 40, right * 60, bottom * 40]
    clipped = {"xmin": 60, "ymin": 40, "xmax": 60, "ymax": 40}
    expected = [min(max(best["box"][side], 0), most) for side, most in clipped.items()]
    assert found == pytest.approx(expected, abs=1.01)  # the pipeline rounds


def test_tokens_of_a_photo_without_a_map_get_a_sentence(tmp_path):
    save_encoder_decoder_detector(tmp_path)
    with pytest.warns(WhenceWarning, match="12 tokens as they come"):
        result = explain(make_photo(), tmp_path, method="gae")
    assert result.grid is None  # each feature has read nearly all of so small a photo
    with pytest.raises(WhenceError, match=r"There is no map: which part of the photo.*'attnlrp'"):
        result.words()


def test_detectors_by_texts_say_what_to_pass(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "owlvit", "architectures": ["OwlViTForObjectDetection"]}'
    )
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(WhenceError, match=r"finds in a photo what texts name.*targets\.box\(\)"):
        load(tmp_path)


def test_what_needs_classes_of_whole_photos_says_so(detector):
    with pytest.raises(WhenceError, match="detects objects in photos, and has no classes of whole"):
        compare(make_photo(), ["gradient"], detector, faithfulness=True)
    assert compare(make_photo(), ["gradient"], detector).faithfulness is None
