import torch
from torch import nn

from whence._util.fingerprint import hash_texts, hash_weights, list_versions


def test_the_hash_of_weights_follows_names_types_shapes_and_values():
    model = nn.Linear(2, 3)
    first = hash_weights(model)
    assert first == hash_weights(model)
    assert len(first) == 64
    with torch.no_grad():
        model.bias[0] += 1
    assert hash_weights(model) != first
    assert hash_weights(nn.Linear(2, 3).double()) != hash_weights(nn.Linear(2, 3))


def test_the_hash_of_texts_tells_them_apart():
    assert hash_texts("a", "bc") != hash_texts("ab", "c")
    assert len(hash_texts("a")) == 12


def test_versions_are_named():
    assert set(list_versions()) == {"whence", "torch", "transformers", "python"}
