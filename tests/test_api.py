import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.saved import make_photo
from whence import WhenceError, explain
from whence.models import load

pytestmark = pytest.mark.usefixtures("embedded")


def test_photos_in_every_form(tmp_path):
    image = make_photo()
    image.save(tmp_path / "photo.png")
    pixels = np.asarray(image)
    forms = (image, tmp_path / "photo.png", str(tmp_path / "photo.png"), pixels, pixels / 255)
    first, *others = [explain(form) for form in forms]
    assert first.scores.shape == (1, 16)
    assert first.grid == (4, 4)
    for other in others:
        assert torch.equal(other.scores, first.scores)
    assert torch.allclose(explain(list(forms)).scores, first.scores.expand(5, -1), atol=1e-6)


def test_texts_in_every_form(tmp_path):
    (tmp_path / "review").write_text("good film")
    (tmp_path / "review.txt").write_text("good film")
    direct = explain("good film", target="positive")
    assert [word for word, _ in direct.words()] == ["good", "film"]
    assert direct.target_names == ["positive"]
    assert torch.equal(explain(tmp_path / "review.txt", target=1).scores, direct.scores)
    assert explain(("good film", "awful")).scores.shape == (2, 4)


def test_one_word(text_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_kind = explain("good", kind="text")
    assert by_kind.words()[0][0] == "good"
    assert torch.equal(explain("good", text_model).scores, by_kind.scores)
    assert torch.equal(explain(["good"]).scores, by_kind.scores)
    assert torch.equal(explain({"text": "good"}).scores, by_kind.scores)
    assert explain({"text": "n/a"}).words()[0][0] == "n"
    make_photo().save("cat.png")
    with pytest.raises(WhenceError, match=r"'catt' is no file .* Did you mean 'cat.png'\?"):
        explain("catt")
    with pytest.raises(WhenceError, match="'film' is not there"):
        explain("film", kind="image")
    with pytest.raises(WhenceError, match="kind is 'text', 'image', 'video' or 'audio', not 'txt'"):
        explain("film", kind="txt")


def test_the_request_is_passed_on():
    result = explain(
        make_photo(), classes=["crane", "cat"], method="tiba", start_layer=1, rules="reference"
    )
    assert result.target_names == [["crane", "cat"]]
    assert result.method == "tiba"
    assert result.settings["start_layer"] == 1
    assert result.settings["rules"] == "reference"
    assert explain(make_photo(), keep_evidence=True).evidence is not None
    assert explain("good film", of="input_ids").settings["of"] == "input_ids"
    with pytest.raises(WhenceError, match="Several inputs in `of` are for Explainer"):
        explain("good film", of=["input_ids"])


def test_models_by_name_and_loaded(image_model, text_model):
    by_name, by_path = explain(make_photo(), str(image_model)), explain(make_photo(), image_model)
    assert torch.equal(by_name.scores, by_path.scores)
    loaded = load(image_model)
    assert torch.equal(explain(make_photo(), loaded).scores, by_path.scores)
    for model in (loaded, image_model):
        with pytest.raises(WhenceError, match="explains images, not texts"):
            explain("good film", model)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ([], "Nothing to explain: the list is empty"),
        ("", "The text is empty"),
        ("none.jpg", "'none.jpg' is not there"),
        (torch.zeros(1, 3, 32, 32), "Tensors are prepared for a model; say for which"),
        (None, "not NoneType"),
        ("good", "'good' is no file or folder here. If it is a text, say so with kind='text'"),
        (["good", make_photo()], "Photos and texts need different models"),
        (np.zeros((2, 2, 7)), r"not \(2, 2, 7\)"),
    ],
)
def test_what_cannot_be_explained(what, message):
    with pytest.raises(WhenceError, match=message):
        explain(what)


def test_whence_can_be_imported_without_transformers_and_torch():
    script = (
        "import sys; sys.modules['transformers'] = None; import whence; "
        "assert 'torch' not in sys.modules; whence.Explainer, whence.rules, whence.methods; "
        "assert set(whence.__all__) == set(dir(whence)); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


def test_there_is_nothing_else_in_whence():
    import whence

    with pytest.raises(AttributeError, match="no attribute 'explane'"):
        _ = whence.explane


def test_a_text_that_is_cut_says_so(embedded):
    with pytest.warns(UserWarning, match="cut at"):
        explain("good film " * 2500)


def test_a_damaged_image_object(tmp_path, embedded):
    from PIL import Image

    make_photo(400, 300).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    with pytest.raises(WhenceError, match="damaged"):
        explain(Image.open(tmp_path / "cut.jpg"))
