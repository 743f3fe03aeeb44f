"""`whence explain` with detection and segmentation models."""

import pytest

from tests.cli.commands import read_summary, run_explain
from tests.saved import save_dense_model
from whence import Explanation

METHOD = ("--method", "input_x_gradient")


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    return save_dense_model(tmp_path_factory.mktemp("detector"))


def test_boxes_by_number_and_name(two_photos, detector):
    (entry,) = read_summary("one.png", "--model", detector, "--top", 4, *METHOD)
    names = [one["name"] for one in entry["classes"]]
    assert len({name.partition("(")[2] for name in names}) == 4
    (entry,) = read_summary("one.png", "--model", detector, "--force", *METHOD)
    assert [one["name"] for one in entry["classes"]] == names[:1]
    assert f"{names[0]} (" in entry["sentence"]
    (entry,) = read_summary(
        "one.png", "--model", detector, "--box", 2, "--target", "dog", "--force", *METHOD
    )
    assert [one["name"] for one in entry["classes"]] == ["dog (box 2)"]
    saved = Explanation.load(two_photos / "whence-out" / "one.safetensors")
    assert saved.areas[0].kind == "box"
    area = {"kind": "box", "bounds": pytest.approx(saved.areas[0].bounds)}
    assert entry["classes"][0]["area"] == area


def test_places_of_a_segmenter(two_photos, tmp_path):
    folder = save_dense_model(tmp_path / "segmenter", "SemanticSegmentation")
    common = ("one.png", "--model", folder, "--force", *METHOD)
    (entry,) = read_summary(*common)
    assert entry["classes"][0]["name"].endswith(" places)")
    (entry,) = read_summary(*common, "--pixel", "3,5", "--target", "dog")
    assert entry["classes"][0]["name"] == "dog (row 3, column 5)"
    (entry,) = read_summary(*common, "--pixel", "0.5,0.0", "--target", "dog")
    assert entry["classes"][0]["name"].endswith(", column 0)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--box", "9"], "Query 9 does not exist: the model has 4, 0 to 3"),
        (["--target", "cow"], "There is no class 'cow'"),
        (["--top", "5"], "The model has 4 queries, and more were asked for"),
        (["--box", "1", "--pixel", "2,3"], "either --box or --pixel"),
        (["--pixel", "middle"], "--pixel takes a row and a column"),
        (["--pixel", "2,3"], "its targets are targets.box(query)"),
    ],
)
def test_what_a_detector_has_not(two_photos, detector, arguments, message):
    failed = run_explain("one.png", "--model", detector, *METHOD, *arguments, code=2)
    assert message in " ".join(failed.stderr.split())
