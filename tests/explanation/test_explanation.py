import dataclasses
import json
import os
import stat

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, Explanation, Explanations, WhenceError
from whence.explanation import Photo
from whence.layout import Tokens
from whence.version import __version__


@pytest.fixture(scope="module")
def of_images() -> Explanation:
    names = ["cat", "dog", "crane", "van", "pot"]
    return Explainer(HandWrittenViT(), class_names=names).explain(
        make_images(32, 32), start_layer=1
    )


@pytest.fixture
def of_text() -> Explanation:
    tokens = Tokens([["[CLS]", "go", "##od", "film"]], [[None, 0, 0, 1]])
    return Explanation(
        torch.tensor([[0.0, 1, 2, 4]]), torch.tensor([1]), torch.zeros(1, 2), tokens=tokens
    )


def test_it_says_how_it_was_made(of_images):
    assert of_images.method == "whence"
    assert of_images.settings == {
        "reading": "evidence",
        "start_layer": 1,
        "gradients": None,
        "sharing": None,
    }
    assert of_images.version == __version__
    assert len(of_images.target_names) == 3
    assert of_images.evidence is None


def test_heatmap_is_the_grid_upsampled(of_images):
    expected = F.interpolate(
        of_images.scores.reshape(3, 1, 4, 4), (40, 60), mode="bilinear", align_corners=False
    )[:, 0]
    assert torch.equal(of_images.heatmap((40, 60)), expected)
    assert of_images.heatmap().shape == (3, 32, 32)
    for size in (5, (0, 3), (4, 4, 4), (4.5, 4)):
        with pytest.raises(WhenceError, match="A size is a height and a width of at least 1, not"):
            of_images.heatmap(size)


def test_heatmaps_of_several_classes():
    result = Explainer(HandWrittenViT()).explain(make_images(32, 32), classes=2)
    maps = result.heatmap((8, 8))
    assert maps.shape == (3, 2, 8, 8)
    alone = Explanation(result.scores[:, 1], result.target[:, 1], result.logits, grid=result.grid)
    assert torch.equal(maps[:, 1], alone.heatmap((8, 8)))


def test_text_has_words_and_no_heatmap(of_text):
    assert of_text.words() == [("good", 3), ("film", 4)]
    with pytest.raises(WhenceError, match="of tokens, which have no heatmap"):
        of_text.heatmap()


def test_words_of_what_is_not_there(of_images, of_text):
    with pytest.raises(WhenceError, match="not of a text"):
        of_images.words()
    with pytest.raises(WhenceError, match="no sample 1; the samples are 0 to 0"):
        of_text.words(1)
    with pytest.raises(WhenceError, match="no explained class 1"):
        of_text.words(0, 1)
    with pytest.raises(WhenceError, match="no sample 0; the batch is empty"):
        of_text[1:].words()


def test_saved_and_loaded(of_images, of_text, tmp_path):
    for explanation in (of_images, of_text):
        explanation.save(tmp_path / "one.safetensors")
        loaded = Explanation.load(tmp_path / "one.safetensors")
        for name in ("scores", "target", "logits"):
            assert torch.equal(getattr(loaded, name), getattr(explanation, name))
        for name in ("grid", "image_size", "tokens", "target_names", "method", "settings"):
            assert getattr(loaded, name) == getattr(explanation, name)
    assert os.listdir(tmp_path) == ["one.safetensors"]


def test_what_cannot_be_loaded_says_so(of_images, tmp_path):
    good = tmp_path / "good.safetensors"
    of_images.save(good)
    content = good.read_bytes()
    (tmp_path / "cut").write_bytes(content[:-7])
    (tmp_path / "text").write_text("not a tensor in sight")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "huge").write_bytes(b"\xff" * 64)
    save_file({"scores": torch.zeros(1)}, tmp_path / "foreign")
    header = {"format": "whence explanation 1", "explanation": json.dumps({"grid": [1]})}
    save_file({n: torch.zeros(1) for n in ("scores", "target", "logits")}, tmp_path / "odd", header)
    for name in ("cut", "text", "empty", "huge", "odd"):
        with pytest.raises(WhenceError, match=rf"{name}' is damaged or not an explanation"):
            Explanation.load(tmp_path / name)
    of_images.save(tmp_path / "a.json")
    with pytest.raises(WhenceError, match=r"a.json' is not a .safetensors file"):
        Explanation.load(tmp_path / "a.json")
    with pytest.raises(WhenceError, match="is a safetensors file, but not an explanation"):
        Explanation.load(tmp_path / "foreign")
    with pytest.raises(WhenceError, match="nowhere' is not there"):
        Explanation.load(tmp_path / "nowhere")
    with pytest.raises(WhenceError, match="is a folder, not a saved explanation"):
        Explanation.load(tmp_path)


def test_what_cannot_be_saved_says_so_and_leaves_nothing(of_images, tmp_path):
    (tmp_path / "folder.json").mkdir()
    names = ("none/x.png", "folder.json", "x" * 300 + ".safetensors")
    for path in (tmp_path / name for name in names):
        with pytest.raises(WhenceError, match="cannot be written"):
            of_images.save(path)
    assert os.listdir(tmp_path) == ["folder.json"]


def test_saving_over_a_file_replaces_it(of_images, of_text, tmp_path):
    of_text.save(tmp_path / "one.safetensors")
    of_images.save(str(tmp_path / "one.safetensors"))
    assert Explanation.load(tmp_path / "one.safetensors").grid == (4, 4)
    assert stat.S_IMODE((tmp_path / "one.safetensors").stat().st_mode) & stat.S_IRUSR


def test_multi_label_probabilities_are_each_their_own(tmp_path):
    logits = torch.tensor([[0.0, 2.0]])
    explanation = Explanation(
        torch.ones(1, 2, 4), torch.tensor([[0, 1]]), logits, grid=(2, 2), multi_label=True
    )
    chances = [one.probability for one in explanation.classes()]
    assert chances == pytest.approx(torch.sigmoid(logits[0]).tolist())
    explanation.save(tmp_path / "one.safetensors")
    assert Explanation.load(tmp_path / "one.safetensors").multi_label


def test_classes_have_names_probabilities_and_scores():
    scores, logits = torch.rand(2, 2, 4), torch.tensor([[3.0, 0.0, 1.0]] * 2)
    names = [["cat", "\x1bdog"], ["dog", "cat"]]
    explanation = Explanation(
        scores, torch.tensor([[0, 2], [2, 0]]), logits, grid=(2, 2), target_names=names
    )
    cat, dog = explanation.classes(0)
    assert (cat.index, cat.name, dog.index, dog.name) == (0, "cat", 2, "\ufffddog")
    assert cat.probability == pytest.approx(float(logits[0].softmax(0)[0]))
    assert (cat.percent, dog.percent) == ("84.4%", "11.4%")
    assert dog.scores.tolist() == scores[0, 1].tolist()
    assert explanation.get_class(1, 1).name == "cat"
    explanation.target_names = None
    assert explanation.get_class(1, 0).name == "class 2"
    with pytest.raises(WhenceError, match="no sample 2; the samples are 0 to 1"):
        explanation.classes(2)
    with pytest.raises(WhenceError, match="no explained class 2"):
        explanation.get_class(0, 2)


def test_a_single_logit_is_no_probability():
    explanation = Explanation(torch.ones(1, 4), torch.tensor([0]), torch.tensor([[7.0]]))
    assert explanation.get_class().probability is None
    assert explanation.get_class().percent == ""


@pytest.mark.parametrize("specific", [True, False])
def test_provenance_names_method_settings_and_version(specific):
    explanation = Explanation(torch.ones(1, 4), torch.tensor([0]), torch.ones(1, 3))
    explanation.method, explanation.settings, explanation.version = "rollout", {"start": 1}, "1.2"
    explanation.class_specific = specific
    note = "" if specific else "rollout is the same for every class"
    label = "rollout" if specific else "rollout (the same for every class)"
    assert explanation.class_note == note
    assert explanation.provenance == [("method", label), ("start", "1"), ("whence", "1.2")]


def test_explanations_of_several_inputs_are_saved_in_one_file(of_images, of_text, tmp_path):
    both = Explanations({"pixel_values": of_images, "input_ids": of_text})
    both.save(tmp_path / "both.safetensors")
    again = Explanations.load(tmp_path / "both.safetensors")
    assert list(again) == ["pixel_values", "input_ids"]
    assert torch.equal(again["pixel_values"].scores, of_images.scores)
    assert again["pixel_values"].grid == (4, 4)
    assert again["pixel_values"].target_names == of_images.target_names
    assert again["input_ids"].words() == of_text.words()
    with pytest.raises(WhenceError, match="holds 'whence explanations 1', not 'whence expl"):
        Explanation.load(tmp_path / "both.safetensors")
    of_text.save(tmp_path / "one.safetensors")
    with pytest.raises(WhenceError, match="holds 'whence explanation 1', not 'whence expl"):
        Explanations.load(tmp_path / "one.safetensors")


def test_texts_as_tables(of_text):
    matrix = of_text.matrix(by="word")
    words = of_text.words()
    assert matrix.columns == [word for word, _ in words]
    assert matrix.values[0].tolist() == pytest.approx([score for _, score in words])
    assert matrix.rows == [one.name for one in of_text.classes()]
    assert of_text.matrix().values.shape[1] == of_text.scores.shape[-1]


def test_samples_of_images_are_selected(of_images):
    one = of_images[1]
    assert len(one) == 1
    assert torch.equal(one.scores[0], of_images.scores[1])
    assert torch.equal(one.logits[0], of_images.logits[1])
    assert one.grid == of_images.grid
    with pytest.raises(WhenceError, match="its samples have numbers"):
        of_images["pixel_values"]
    with pytest.raises(WhenceError, match="not of tokens"):
        of_images.matrix()


def test_one_line_says_what_it_is(of_images, of_text):
    assert repr(of_images) == "Explanation(whence, model HandWrittenViT, 3 photos, 4\u00d74)"
    one = of_images[0]
    first = one.get_class()
    one.model = "pets"
    assert (
        repr(one)
        == f"Explanation(whence, model pets, 1 photo, {first.name} {first.percent}, 4\u00d74)"
    )
    assert str(of_text) == "Explanation(1 text, class 1 50.0%, 4 tokens)"
    one.scores[0, 0] = torch.nan
    assert repr(one) == "Explanation(whence, model pets, 1 photo, 4\u00d74)"


def test_photos_as_tables(of_images):
    pytest.importorskip("pandas")
    table = of_images.to_pandas(1)
    assert len(table) == 16
    for line in table.itertuples():
        assert line.score == pytest.approx(float(of_images.scores[1, 4 * line.row + line.column]))
        assert (line.x, line.y) == (8 * line.column + 4, 8 * line.row + 4)  # 32 pixels, 4 patches
    photo = Photo(Image.new("RGB", (200, 100)), (50, 0, 150, 100))
    of_crop = dataclasses.replace(of_images[1], photos=[photo]).to_pandas()
    assert of_crop["x"].min() == 50 + 12.5
    assert of_crop["y"].max() == 87.5
