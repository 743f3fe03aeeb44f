import numpy as np
import pytest
import torch
from torch import nn

from whence import WhenceError
from whence.targets import find_class_names, resolve_classes, select_samples
from whence.targets.classes import to_probabilities
from whence.targets.scalars import ClassScalars

LOGITS = torch.tensor([[0.1, 3.0, 2.0, -1.0], [5.0, 1.0, 0.0, 2.0]])
NAMES = {0: "tabby, tabby cat", 1: "Egyptian cat", 2: "golden retriever", 3: "crane"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [[1], [0]]),
        ({"target": 2}, [[2], [2]]),
        ({"target": np.int64(2)}, [[2], [2]]),
        ({"target": torch.tensor(2)}, [[2], [2]]),
        ({"target": [2, 3]}, [[2], [3]]),
        ({"target": torch.tensor([2, 3])}, [[2], [3]]),
        ({"target": "egyptian cat"}, [[1], [1]]),
        ({"target": "Tabby"}, [[0], [0]]),
        ({"target": ["crane", 1]}, [[3], [1]]),
        ({"target": "3"}, [[3], [3]]),
        ({"classes": 1}, [[1], [0]]),
        ({"classes": 2}, [[1, 2], [0, 3]]),
        ({"classes": 4}, [[1, 2, 0, 3], [0, 3, 1, 2]]),
        ({"classes": [3, "tabby cat"]}, [[3, 0], [3, 0]]),
        ({"classes": "crane"}, [[3], [3]]),
        ({"classes": torch.tensor([[0, 1], [2, 3]])}, [[0, 1], [2, 3]]),
        ({"classes": [[0, 1], ["crane", 3]]}, [[0, 1], [3, 3]]),
    ],
)
def test_classes_by_index_name_and_rank(arguments, expected):
    assert resolve_classes(LOGITS, NAMES, **arguments).tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 4}, "Class 4 does not exist: the model has 4 classes, 0 to 3"),
        ({"target": -1}, "Class -1 does not exist"),
        ({"target": True}, "Class True does not exist"),
        ({"target": 1.5}, "A class is an index or a name, not 1.5"),
        (
            {"target": "golden retreiver"},
            "no class 'golden retreiver'. The model has 'tabby, tabby cat', 'Egyptian cat'",
        ),
        ({"target": "99"}, "Class 99 does not exist"),
        ({"target": [1, 2, 3]}, r"3 targets were given for 2 sample\(s\)"),
        ({"target": 1, "classes": 2}, "either target or classes"),
        ({"classes": 0}, "top 0, but the model has 4 classes"),
        ({"classes": 5}, "top 5, but the model has 4 classes"),
        ({"classes": 2.5}, "classes is a number or a list of classes, not 2.5"),
        ({"classes": True}, "classes is a number or a list of classes, not True"),
        ({"classes": []}, "given for 2 sample|at least one class"),
        ({"classes": [[0], [1, 2]]}, "as many for each sample"),
        ({"classes": [[0, 1], 2]}, "Name classes for all samples, or a list for each"),
    ],
)
def test_wrong_classes(arguments, message):
    with pytest.raises(WhenceError, match=message):
        resolve_classes(LOGITS, NAMES, **arguments)


def test_missing_and_ambiguous_names():
    with pytest.raises(WhenceError, match=r"does not name its classes.*class_names=\[...\]"):
        resolve_classes(LOGITS, {}, target="cat")
    with pytest.raises(WhenceError, match=r"'crane' names several classes: \[0, 3\]"):
        resolve_classes(LOGITS, {0: "crane", 3: "crane"}, target="crane")


def test_names_of_many_classes():
    many = (
        "tench|tabby, tabby cat|Egyptian cat|hotdog, hot dog|golden retriever|sheepdog|crane|kite"
    )
    logits, names = torch.zeros(1, 8), dict(enumerate(many.split("|")))
    for word, near in {
        "retrievers": "Did you mean 'golden retriever'?",
        "golden retreiver": "Did you mean 'golden retriever'?",
        "kitten": "Did you mean 'tabby cat' or 'Egyptian cat'?",
        "dog": "Did you mean 'hot dog', 'hotdog' or 'sheepdog'?",
        "zzz": "There is no class 'zzz'.",
    }.items():
        with pytest.raises(WhenceError) as raised:
            resolve_classes(logits, names, target=word)
        assert str(raised.value).endswith(near)


def test_find_class_names():
    plain, hugging_face, timm = nn.Identity(), nn.Identity(), nn.Identity()
    hugging_face.config = type("Config", (), {"id2label": {0: "cat", "1": "dog"}})()
    timm.pretrained_cfg = {"label_names": ("cat", "dog")}
    assert find_class_names(plain) == {}
    assert find_class_names(hugging_face) == find_class_names(timm) == {0: "cat", 1: "dog"}


def test_a_single_sample():
    assert resolve_classes(LOGITS[:1], NAMES, classes=[3, 0]).tolist() == [[3, 0]]
    assert resolve_classes(LOGITS[:1], NAMES, classes=[[3, 0]]).tolist() == [[3, 0]]


def test_names_of_classes_that_the_model_does_not_have():
    with pytest.raises(WhenceError, match="no class 'robin'"):
        resolve_classes(LOGITS, {**NAMES, 4: "robin"}, target="robin")


def test_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, -1.0]], dtype=torch.float64)
    for given in (logits, logits[None].expand(2, 2, 3), logits[:, None]):
        exponents = given.exp()
        assert torch.allclose(to_probabilities(given), exponents / exponents.sum(-1, keepdim=True))
        assert torch.allclose(to_probabilities(given, multi_label=True), 1 / (1 + (-given).exp()))
    pair = to_probabilities(logits[:, :2])
    assert torch.allclose(pair.sum(-1), torch.ones(2, dtype=torch.float64))
    quantity = torch.tensor([[2.5], [-1.0]])
    assert to_probabilities(quantity).equal(quantity)
    assert torch.allclose(to_probabilities(quantity, multi_label=True), quantity.sigmoid())


@pytest.mark.parametrize(
    ("target", "classes", "expected"),
    [
        (None, None, (None, None)),
        (2, None, (2, None)),
        ("crane", None, ("crane", None)),
        ([0, "crane", 2], None, (["crane", 2], None)),
        (None, 2, (None, 2)),
        (None, "crane", (None, "crane")),
        (None, [0, 1, 2, 3], (None, [0, 1, 2, 3])),
        (None, [[0, 1], [1, 2], [2, 3]], (None, [[1, 2], [2, 3]])),
    ],
)
def test_the_target_of_some_samples(target, classes, expected):
    assert select_samples(target, classes, slice(1, 3), 3) == expected
    assert select_samples(target, classes, slice(0, 3), 3) == (target, classes)


def test_targets_of_some_samples_are_one_for_each():
    with pytest.raises(WhenceError, match=r"2 targets were given for 3 sample\(s\)"):
        select_samples([0, 1], None, slice(1, 3), 3)
    with pytest.raises(WhenceError, match=r"2 targets were given for 3 sample\(s\)"):
        select_samples(None, [[0], [1]], slice(1, 3), 3)
    mixed = [0, [1], [2]]  # found to be wrong once classes are resolved
    assert select_samples(None, mixed, slice(1, 3), 3) == (None, [[1], [2]])
    whole = (0, 1, 2)
    assert select_samples(whole, None, slice(0, 3), 3)[0] is whole


# Seeds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_rules", [False, True])
def test_centered_seeds_are_of_a_logit_less_the_mean(by_rules):
    """What autograd gives for that scalar."""
    classes = torch.tensor([[1, 3], [0, 2]])
    found = ClassScalars(classes).make_seeds(LOGITS, by_rules=by_rules, centered=True)
    leaf = LOGITS.clone().requires_grad_()
    for n in range(2):
        logits = leaf.gather(1, classes[:, n : n + 1])[:, 0]
        (expected,) = torch.autograd.grad((logits - leaf.mean(1)).sum(), leaf)
        assert torch.allclose(found[n], expected)
    assert torch.allclose(found.sum(-1), torch.zeros(2, 2), atol=1e-6)


def test_seeds_that_are_not_centered():
    """Labels that do not compete, a class against another, a lone logit; and unless asked for."""
    classes, others = torch.tensor([[1, 3], [0, 2]]), torch.tensor([[0, 0], [1, 1]])
    one_hot = torch.eye(4)[classes.T]
    alone = torch.tensor([[2.0], [3.0]])
    for scalars, outputs, expected in (
        (ClassScalars(classes, multi_label=True), LOGITS, one_hot),
        (ClassScalars(classes, others), LOGITS, one_hot - torch.eye(4)[others.T]),
        (ClassScalars(torch.zeros(2, 1, dtype=torch.long)), alone, torch.ones(1, 2, 1)),
    ):
        assert torch.equal(scalars.make_seeds(outputs, centered=True), expected)
    assert torch.equal(ClassScalars(classes).make_seeds(LOGITS), one_hot)
