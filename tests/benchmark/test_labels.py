import pytest

from tests.benchmark.helpers import read_samples
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
