"""Which sequences are related through attention, and which attentions go side by side."""

from types import SimpleNamespace

from tests.multimodal import load_model, read_sample
from whence import Explainer
from whence.methods import gae
from whence.methods.shared.sequences import find_related_pairs, group_concurrent


def test_the_two_directions_of_a_layer_of_lxmert_go_side_by_side(monkeypatch):
    """Three layers of text, two of the image, two across: the last one for the text alone."""
    found = []

    def note(trace, layers):
        found.append(group_concurrent(trace, layers))
        return found[-1]

    monkeypatch.setattr(gae, "group_concurrent", note)
    inputs = read_sample("lxmert_a", 0)
    Explainer(load_model("lxmert_a")).explain(inputs, of="visual_feats", method="gae")
    assert found == [[[0], [1], [2, 3], [4], [5, 6], [7, 8], [9], [10]]]


def test_pairs_are_related_through_what_was_attended_to_before():
    ends = [(0, 0), (1, 0), (2, 1), (0, 2)]
    layers = [SimpleNamespace(queries=queries, keys=keys) for queries, keys in ends]
    in_turn, at_once = [[0], [1], [2], [3]], [[0, 1, 2, 3]]
    assert find_related_pairs(layers, at_once) == set(ends)
    assert find_related_pairs(layers, in_turn) == {*ends, (2, 0), (0, 1)}
    assert find_related_pairs(layers, in_turn, first=2) == {(2, 1), (0, 2), (0, 1)}
