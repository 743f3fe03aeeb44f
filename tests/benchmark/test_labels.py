import dataclasses

import pytest

from tests.benchmark.helpers import read_samples
from tests.saved import make_photo
from whence import WhenceError, datasets
from whence.benchmark import build_protocol


def test_labels_of_other_names(bert, reviews):
    sample = read_samples(reviews, 1)[0]
    assert build_protocol("rationale", {}).labels.find_index(bert, sample) == 1
    turned = build_protocol("rationale", {"classes": "POS=0,NEG=positive"})
    assert turned.labels.find_index(bert, sample) == 0
    odd = datasets.Sample("x", "a film", label="fine")
    with pytest.raises(WhenceError, match=r"label of 'x' is not a class.*--classes"):
        turned.labels.find_index(bert, odd)


def test_a_label_under_another_name(vit):
    labels = build_protocol("perturbation", {}).labels
    pet = datasets.Sample("x", make_photo(8, 8), label=285, other_labels=("Maine_Coon", "cat"))
    assert labels.find_index(vit, pet) == 0
    assert labels.find_index(vit, dataclasses.replace(pet, label=2)) == 2, "the label comes first"
    assert labels.find_index(vit, dataclasses.replace(pet, label=None)) == 0
    odd = dataclasses.replace(pet, other_labels=("Maine_Coon",))
    with pytest.raises(WhenceError, match=r"label of 'x' is not a class.*285"):
        labels.find_index(vit, odd)
    assert labels.find_index(vit, dataclasses.replace(odd, label=None)) is None


def test_of_many_classes_a_beginning_is_whole_words(vit):
    names = dict(
        enumerate(["catamaran", "tench, Tinca tinca", *(f"class {at}" for at in range(10))])
    )
    many = dataclasses.replace(vit, class_names=names, class_count=len(names))
    labels = build_protocol("perturbation", {}).labels
    assert labels.find_index(many, datasets.Sample("x", "", label="tench")) == 1
    with pytest.raises(WhenceError, match="no class 'cat'"):
        labels.find_index(many, datasets.Sample("x", "", label="cat"))
