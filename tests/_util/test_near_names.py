"""Names near to a word: by the words in them, in the singular, then by letters; near files."""

from pathlib import Path

import pytest

from whence._util.near_names import find_near_names, find_near_paths, suggest_names, suggest_paths

DOGS = ["golden retriever", "Labrador retriever", "Old English sheepdog", "hot dog", "red fox"]
METHODS = ["gradient", "attention_gradcam", "lrp", "tiba", "rollout", "smoothgrad"]


@pytest.mark.parametrize(
    ("word", "names", "near"),
    [
        ("retriever", DOGS, ["golden retriever", "Labrador retriever"]),
        ("Retrievers", DOGS, ["golden retriever", "Labrador retriever"]),
        ("retreiver", DOGS, ["golden retriever", "Labrador retriever"]),
        ("golden_retriever", DOGS, ["golden retriever"]),
        ("retriever golden", DOGS, ["golden retriever"]),
        ("dogs", DOGS, ["hot dog", "Old English sheepdog"]),
        ("puppies", DOGS, ["hot dog", "Old English sheepdog"]),
        ("foxes", DOGS, ["red fox"]),
        ("grey fox", DOGS, ["red fox"]),
        ("zebra", DOGS, []),
        ("", DOGS, []),
        ("grad", METHODS, ["gradient", "attention_gradcam", "smoothgrad"]),
        ("tibba", METHODS, ["tiba"]),
        ("roll-out", METHODS, ["rollout"]),
        ("kitten", ["mitten", "tabby cat"], ["tabby cat"]),
        ("kitten", ["mitten"], ["mitten"]),
    ],
)
def test_near_names(word, names, near):
    assert find_near_names(word, names) == near


def test_a_suggestion_is_short_and_has_a_count():
    assert suggest_names("x", ["tiba"]) == ""
    assert suggest_names("tibba", ["tiba"]) == " Did you mean 'tiba'?"
    assert suggest_names("tibba", ["tiba"], str.upper) == " Did you mean 'TIBA'?"
    assert suggest_names("cat", ["a cat", "b cat", "c cat"]).endswith(
        "'a cat', 'b cat' or 'c cat'?"
    )
    many = suggest_names("cat", [f"cat {number}" for number in range(40)])
    assert many.startswith(" Did you mean one of these 40: 'cat 0', 'cat 1',")
    assert many.endswith("'cat 4', …?")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "photos").mkdir()
    for name in ("cat.jpg", "photos/dog.png", "photos/.hidden.png"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("cat.jpeg", ["cat.jpg"]),
        ("CAT.JPG", ["cat.jpg"]),
        ("cat", ["cat.jpg"]),
        ("catt.png", ["cat.jpg"]),
        ("cta.jpg", ["cat.jpg"]),
        ("phots", ["photos"]),
        ("phots/dog.png", ["photos/dog.png"]),
        ("phots/zebra.png", ["photos"]),
        ("photos/dogg.png", ["photos/dog.png"]),
        ("photos/hidden.png", []),
        ("car.png", []),
        ("nowhere/at/all", []),
    ],
)
def test_near_paths(folder, path, near):
    assert find_near_paths(Path(path)) == [Path(one) for one in near]


def test_paths_are_suggested_as_they_were_given(folder):
    assert suggest_paths(folder / "cat.jpeg") == f" Did you mean '{folder / 'cat.jpg'}'?"
