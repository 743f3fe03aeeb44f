"""Class indices from indices, names or the model's own ranking; names and probabilities."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex, TypeAlias, TypeVar

from torch import Tensor, nn
from typing_extensions import TypeIs

from whence._util.near_names import suggest_names
from whence._util.sending import send
from whence.errors import WhenceError

OneClass: TypeAlias = SupportsIndex | str
ClassTarget: TypeAlias = OneClass | Iterable[OneClass]
Classes: TypeAlias = OneClass | Iterable[OneClass | Iterable[OneClass]]
_Item = TypeVar("_Item")
# So few classes are all named where a name is wrong.
_FEW = 6


def find_class_names(model: nn.Module) -> dict[int, str]:
    """Find the class names that a model carries: ``config.id2label``, or a timm model's labels."""
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping):
        return {int(index): str(name) for index, name in labels.items()}
    timm_config = getattr(model, "pretrained_cfg", None)
    names = timm_config.get("label_names") if isinstance(timm_config, Mapping) else None
    return dict(enumerate(map(str, names))) if names else {}


def to_probabilities(logits: Tensor, multi_label: bool = False) -> Tensor:
    """Convert logits, (..., classes), to probabilities.

    With ``multi_label``, each class has a probability of its own. Otherwise a single logit is a
    quantity, not a probability, and stays as it is.
    """
    if multi_label:
        return logits.sigmoid()
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits


def resolve_classes(
    logits: Tensor,
    names: Mapping[int, str],
    target: ClassTarget | None = None,
    classes: Classes | None = None,
) -> Tensor:
    """Resolve a target or classes to class indices, (batch, n).

    Args:
        logits: (batch, classes).
        names: Names of class indices.
        target: None (the predicted class), an index, a name, or one of these for each sample.
        classes: A number k (the k highest), or indices or names for all samples, or for each.
    """
    batch, count = logits.shape
    if target is not None and classes is not None:
        raise WhenceError("Give either target or classes, not both.")
    if classes is None:
        if target is None:
            return logits.argmax(1, keepdim=True)
        if is_one_class(target):
            indices = [[find_class_index(target, names, count)]] * batch
        else:
            indices = [[find_class_index(one, names, count)] for one in target]
    elif is_one_class(classes) and not isinstance(classes, str):
        return logits.topk(_check_top_count(classes, count)).indices
    else:
        listed = [classes] if isinstance(classes, str) else list(classes)
        single = [one for one in listed if is_one_class(one)]
        lists = [row for row in listed if not is_one_class(row)]
        if single and not lists:
            lists = [single] * batch
        elif single:
            raise WhenceError(f"Name classes for all samples, or a list for each, not {classes!r}.")
        indices = [[find_class_index(one, names, count) for one in row] for row in lists]
    indices = _list_for_each_sample(indices, batch)
    if not indices or not indices[0] or len({len(row) for row in indices}) > 1:
        raise WhenceError("Name at least one class, and as many for each sample.")
    return send(indices, logits.device)


def select_samples(
    target: ClassTarget | None, classes: Classes | None, rows: slice, batch: int
) -> tuple[ClassTarget | None, Classes | None]:
    """Select some samples' target or classes, where each sample of the batch has its own."""
    if rows == slice(0, batch):
        return target, classes
    if target is not None and not is_one_class(target):
        target = _list_for_each_sample(target, batch)[rows]
    if classes is not None and not is_one_class(classes) and not all(map(is_one_class, classes)):
        classes = _list_for_each_sample(classes, batch)[rows]
    return target, classes


def _list_for_each_sample(items: Iterable[_Item], batch: int) -> list[_Item]:
    listed = list(items)
    if len(listed) != batch:
        raise WhenceError(f"{len(listed)} targets were given for {batch} sample(s).")
    return listed


def is_one_class(value: object) -> TypeIs[OneClass]:
    """Whether a value names one class, rather than several."""
    if isinstance(value, str):
        return True
    if isinstance(value, Sequence | set | frozenset):
        return False
    return getattr(value, "ndim", 0) == 0


def _check_top_count(k: SupportsIndex, count: int) -> int:
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise WhenceError(f"classes is a number or a list of classes, not {k!r}.")
    top = operator.index(k)
    if not 1 <= top <= count:
        raise WhenceError(
            f"classes={top} asks for the top {top}, but the model has {count} classes."
        )
    return top


def find_class_index(value: object, names: Mapping[int, str], count: int) -> int:
    """Find the index of a class that is given by index or name."""
    if isinstance(value, str):
        return _find_index_of_name(value, names, count)
    try:
        index = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise WhenceError(f"A class is an index or a name, not {value!r}.") from None
    if isinstance(value, bool) or not 0 <= index < count:
        raise WhenceError(
            f"Class {value!r} does not exist: the model has {count} classes, 0 to {count - 1}."
        )
    return index


def _find_index_of_name(name: str, names: Mapping[int, str], count: int) -> int:
    wanted = name.strip().lower()
    # Labels may list synonyms: "tabby, tabby cat".
    labels = {index: label.lower() for index, label in names.items() if index < count}
    matches = [index for index, label in labels.items() if wanted == label]
    matches = matches or [index for index, label in labels.items() if wanted in label.split(", ")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise WhenceError(f"'{name}' names several classes: {matches}. Give the index.")
    if wanted.isdecimal():
        return find_class_index(int(wanted), names, count)
    if not labels:
        raise WhenceError(
            f"The model does not name its classes, so '{name}' cannot be found. Give an index, or "
            f"names: Explainer(model, class_names=[...])."
        )
    if len(labels) <= _FEW:
        listed = ", ".join(f"'{names[index]}'" for index in labels)
        raise WhenceError(f"There is no class '{name}'. The model has {listed}.")
    synonyms = [one for index in labels for one in names[index].split(", ")]
    raise WhenceError(f"There is no class '{name}'.{suggest_names(name, synonyms)}")
