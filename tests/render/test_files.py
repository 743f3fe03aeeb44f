"""Explanations of every kind in every form that a file can have."""

import io
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from tests.generations import make_generation
from tests.html_pages import parse_html
from tests.render.samples import explain_image, explain_text
from whence import Explanation, WhenceError
from whence.explanation import Check, Photo
from whence.render.files import SUFFIXES

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))


def explain_photo() -> Explanation:
    result = explain_image(torch.rand(2, 4, 6), ["cat", "dog"])
    result.photos = [Photo(PHOTO, (10.0, 0.0, 50.0, 40.0))]
    result.checks = [Check("dead", 0.0, "passed", "All is well.")]
    return result


def explain_grid(*grid: int) -> Explanation:
    scores = torch.rand(1, int(np.prod(grid)))
    return Explanation(scores, torch.tensor([0]), torch.tensor([[1.0, 0.0]]), grid=grid)


KINDS = {
    "photo": explain_photo,
    "map alone": lambda: explain_image(np.eye(3)),
    "text": lambda: explain_text(["good", "film"], [[1.0, 2.0], [0.5, -1.0]], ["yes", "no"]),
    "tokens": lambda: Explanation(torch.rand(1, 4), torch.tensor([0]), torch.zeros(1, 2)),
    "generation": make_generation,
    "signal": lambda: explain_grid(7),
    "video": lambda: explain_grid(2, 3, 3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_every_form(kind, tmp_path):
    explanation = KINDS[kind]()
    every = [ending for ending in SUFFIXES if ending != ".gif"]  # which is for videos with frames
    for ending in every:
        explanation.save(tmp_path / f"a{ending}")
    for ending, form in ((".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "JPEG")):
        assert Image.open(tmp_path / f"a{ending}").format == form
    name = explanation.classes()[0].name.strip()
    for ending in (".svg", ".html", ".json", ".csv"):
        assert name in (tmp_path / f"a{ending}").read_text(encoding="utf-8")
    arrays = np.load(io.BytesIO((tmp_path / "a.npz").read_bytes()), allow_pickle=False)
    assert np.allclose(arrays["scores"], explanation.numpy())
    assert arrays["names"].shape == explanation.target.shape
    again = Explanation.load(tmp_path / "a.safetensors")
    assert torch.equal(again.scores, explanation.scores)
    assert len(os.listdir(tmp_path)) == len(every)


@pytest.mark.parametrize("name", ["a", "a.tif", "a.pt", "a.pdf", "a.png.bak"])
def test_another_ending_is_refused(name, tmp_path):
    with pytest.raises(WhenceError, match=r"must end in \.png, .*\.npz or \.safetensors"):
        explain_photo().save(tmp_path / name)
    assert not os.listdir(tmp_path)


def test_arrays_of_numpy_alone(tmp_path):
    explanation = explain_photo()
    explanation.scores = explanation.scores.bfloat16()
    explanation.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert arrays["scores"].shape == (1, 2, 24)
        assert arrays["scores"].dtype == np.float32
        assert arrays["grid"].tolist() == [4, 6]
        assert arrays["names"].tolist() == [["cat", "dog"]]
        assert arrays["box"].tolist() == [[10, 0, 50, 40]]
        assert arrays["size"].tolist() == [[60, 40]]
        assert np.allclose(arrays["logits"], explanation.logits)
        assert str(arrays["method"]) == "tiba"
        assert json.loads(str(arrays["checks"]))[0]["name"] == "dead"


def test_json_has_all_that_a_program_needs(tmp_path):
    explanation = explain_photo()
    explanation.logits[0, 2] = -torch.inf
    explanation.save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert (data["method"], data["model"], data["version"]) == ("tiba", "pets", "1.2.3")
    assert data["checks"] == [
        {"name": "dead", "figure": 0.0, "status": "passed", "sentence": "All is well."}
    ]
    (sample,) = data["samples"]
    assert sample["sentence"] == explanation.describe()
    assert sample["rows"] == ["cat", "dog"]
    assert sample["probabilities"] == [one.probability for one in explanation.classes()]
    assert np.allclose(sample["scores"], explanation.scores[0].reshape(2, 4, 6))
    assert sample["photo"] == {"size": [60, 40], "box": [10, 0, 50, 40]}
    assert sample["logits"][2] is None


def test_a_page_of_a_photo_has_pictures_and_real_text(tmp_path):
    explain_photo().save(tmp_path / "a.html")
    page = parse_html((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert [one.text for one in page.find_all("h1")] == ["cat 86.7%"]
    captions = [one.text for one in page.find_all("figcaption")]
    assert captions == ["What the model saw", "cat 86.7%", "dog 11.7%"]
    alts = [one.attributes["alt"] for one in page.find_all("img")]
    assert {"Map of tiba for cat", "Map of tiba for dog"} < set(alts)
    assert all(one.attributes["src"].startswith("data:image/") for one in page.find_all("img"))
    facts = [one.text for one in page.find_all("dd")]
    assert {"tiba", "pets"} < set(facts)


def test_names_are_text_and_never_html():
    evil = '<script>alert("1")</script>'
    explanation = explain_photo()
    explanation.target_names, explanation.model = [[evil, "b"]], evil
    for page in (explanation.to_html(), explanation._repr_html_()):
        root = parse_html(page)
        assert not root.find_all("script")
        assert evil in root.find_all("figure")[1].text
        assert evil in [one.text for one in root.find_all("dd")]
    assert "<script" not in explanation.plot().to_svg()


def test_what_is_not_finite_is_refused_and_nothing_written(tmp_path):
    explanation = explain_photo()
    explanation.scores[0, 0, 0] = torch.nan
    for ending in (".png", ".html", ".json", ".csv"):
        with pytest.raises(WhenceError, match="NaN"):
            explanation.save(tmp_path / f"a{ending}")
    assert not os.listdir(tmp_path)
