"""`explain`: photos or texts and a model in, explanations out."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

from torch import Tensor

from whence import methods
from whence._util.defaults import METHOD
from whence._util.notes import merge_notes
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.inputs.items import Batch, find_kind, is_stream, iterate, read_batch
from whence.inputs.sources import NOUNS, Kind
from whence.models import LoadedModel, ModelObject, compare_with, load, resolve
from whence.models.wrapping import MissingProcessor, is_model, reads_videos
from whence.rules import RuleSet
from whence.targets import AnyTarget, SeveralTargets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from torch.utils.data import DataLoader, Dataset

    OneBatch: TypeAlias = (
        str | Path | Image | NDArray[np.generic] | Tensor | Mapping[str, Any] | Sequence[Any]
    )
    Stream: TypeAlias = "DataLoader[Any] | Dataset[Any] | Iterator[Any] | Rows"


class Rows(Protocol):
    """A dataset of the library datasets."""

    @property
    def column_names(self) -> Any:
        """The names of its columns."""

    def __iter__(self) -> Iterator[Any]: ...


@overload
def explain(
    what: OneBatch,
    model: str | Path | ModelObject | None = None,
    target: AnyTarget | None = None,
    against: AnyTarget | None = None,
    classes: SeveralTargets | None = None,
    method: str = METHOD,
    rules: str | RuleSet = "stable",
    *,
    processor: object = None,
    texts: Sequence[str] | None = None,
    column: str | None = None,
    kind: Kind | None = None,
    of: str | int | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    **options: Any,
) -> Explanation: ...


@overload
def explain(
    what: Stream,
    model: str | Path | ModelObject | None = None,
    target: AnyTarget | None = None,
    against: AnyTarget | None = None,
    classes: SeveralTargets | None = None,
    method: str = METHOD,
    rules: str | RuleSet = "stable",
    *,
    processor: object = None,
    texts: Sequence[str] | None = None,
    column: str | None = None,
    kind: Kind | None = None,
    of: str | int | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    **options: Any,
) -> Iterator[Explanation]: ...


def explain(
    what: OneBatch | Stream,
    model: str | Path | ModelObject | None = None,
    target: AnyTarget | None = None,
    against: AnyTarget | None = None,
    classes: SeveralTargets | None = None,
    method: str = METHOD,
    rules: str | RuleSet = "stable",
    *,
    processor: object = None,
    texts: Sequence[str] | None = None,
    column: str | None = None,
    kind: Kind | None = None,
    of: str | int | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    **options: Any,
) -> Explanation | Iterator[Explanation]:
    """Prepare photos, texts, videos or sounds for a model, and explain the model's decisions.

    Args:
        what: A path, a PIL image, an array (height, width, 3) of uint8 or floats from 0 to 1, a
            text, or a list of these, which are explained as one batch. A string that names a file,
            or looks like a path, is a path. For a model of videos, an animated GIF or WebP, a
            folder of frames, a list of pictures, or an array (frames, height, width, 3); of sounds,
            a .wav, or an array (time,). Or tensors that are prepared for the model. Or many
            inputs that are read one by one: a dataset of the library datasets or of torch, a
            ``DataLoader``, any iterator. Their items are any of the above, rows with columns, or
            these with labels, which are left out. A tensor of a dataset of torch is one sample.
        model: A folder, a name on the hub, ``timm:NAME``, ``torchvision:NAME``; a model object of
            these libraries or your own; a pipeline of transformers; what `whence.models.load`
            returned; or None for the embedded model that suits the input.
        target: What to explain: a class by index or name, or any of `whence.targets`; the model's
            own decision if left out.
        against: The same forms: why the target and not this one.
        classes: Instead of target, several targets, or a number k for the top k.
        method: Any of ``methods.available()``.
        rules: The relevance rules: any of ``rules.available()``, or a set of your own.
        processor: For a model object, what prepares inputs for it: its image processor, its
            tokenizer, or any function from a PIL image to a tensor (3, height, width). Models of
            timm and torchvision need none.
        texts: For a model that compares its inputs with texts, these texts: with a CLIP, what a
            photo may show; with an encoder of sentences, other sentences. They are then the classes
            of `target`, `against` and `classes`, and the words of those explained get scores, too.
        column: Of rows, the column to explain; if left out, the one with a photo, or the text.
        kind: ``"text"`` says that a string is text, also one word or what looks like a path;
            ``"image"``, ``"video"`` and ``"audio"``, that it is a path.
        of: Which of the model's inputs gets scores, by name; its main one if left out.
        weights: A safetensors file, for models of timm and torchvision by name.
        device: Where to run a model by name; the best there is if left out.
        **options: Other arguments of `Explainer.explain`: ``keep_evidence``, options of the method.

    Returns:
        The explanation, of a batch of one unless a list or tensors were given. For a dataset, a
        data loader or an iterator, an iterator: one explanation for each of its items, in order,
        computed when it is asked for. It keeps none of them, so memory does not grow. With texts,
        the explanations are `PairExplanation`.

    Raises:
        WhenceError: Something is wrong with the input, the model or the request.

    Example:
        >>> explain("cat.jpg", target="cat").heatmap()  # doctest: +SKIP
        >>> explain("A wonderful film.").words()  # doctest: +SKIP
        >>> explain("cat.jpg", "./clip", texts=["a cat", "a dog"]).plot()  # doctest: +SKIP
        >>> for result in explain(dataset, model=pipeline):  # doctest: +SKIP
        ...     print(result.target_names)
    """
    if isinstance(of, list | tuple):
        raise WhenceError(
            "Several inputs in `of` are for Explainer(model).explain(inputs, of=...)."
        )
    if kind not in (None, *NOUNS):
        raise WhenceError(f"kind is 'text', 'image', 'video' or 'audio', not {kind!r}.")
    methods.get(method)
    request: dict[str, Any] = {"target": target, "against": against, "classes": classes, "of": of}
    request |= {"method": method, "rules": rules, **options}
    if is_model(what):
        raise WhenceError("The input comes first, then the model: explain(photo, model=model).")
    batch = loaded = None
    kind = kind or ("video" if reads_videos(model) else None)
    if not is_stream(what) and not isinstance(what, Mapping):
        # Before a large model is loaded for what is not there. Alone, one word may be mistyped.
        words = model is not None or not isinstance(what, str)
        batch = read_batch(what, strings=kind, words=words)
    if model is not None:
        loaded = compare_with(resolve(model, None, processor, weights, device), texts)
        if loaded.kind == "video" and kind is None and _find_kind(batch) == "image":
            # The model came from the hub just now, and what it reads was not known before.
            batch = read_batch(what, strings="video")
    elif texts is not None:
        raise WhenceError(
            "texts= is for a model that compares inputs with texts, such as a CLIP or an encoder "
            "of sentences: model=…."
        )
    elif processor is not None:
        raise WhenceError("processor= is for a model object: model=….")
    known = None if loaded is None else loaded.kind
    if not is_stream(what):
        batch = read_batch(what, column, known, kind) if batch is None else batch
        return _explain_batch(batch, loaded or _load_embedded(batch, device), request)
    items = (read_batch(item, column, known, kind) for item in iterate(what))
    first = next(items, None)
    if first is None:
        raise WhenceError(f"Nothing to explain: the {type(what).__name__} is empty.")
    loaded = loaded or _load_embedded(first, device)
    return _explain_items(itertools.chain((first,), items), loaded, request)


def _load_embedded(batch: Batch, device: str | None) -> LoadedModel:
    kind = _find_kind(batch)
    if kind is None:
        raise WhenceError("Tensors are prepared for a model; say for which: model=….")
    return load(None, kind, None, device)


def _find_kind(batch: Batch | None) -> Kind | None:
    return find_kind(batch[0]) if isinstance(batch, list) else None


def _explain_batch(batch: Batch, model: LoadedModel, request: Mapping[str, Any]) -> Explanation:
    if not isinstance(batch, list):
        return model.explain(model.take_tensors(batch), **request)
    kind = find_kind(batch[0])
    if kind != model.kind and not isinstance(model.preprocessor, MissingProcessor):
        raise WhenceError(
            f"The model '{model.title}' explains {NOUNS[model.kind]}, not {NOUNS[kind]}."
        )
    prepared = model.prepare(batch)
    noun = "photo" if kind == "image" else NOUNS[kind].removesuffix("s")
    for note in merge_notes(prepared.notes, noun) if len(batch) > 1 else prepared.notes[0]:
        warnings.warn(f"Note: {note}.", stacklevel=3)
    return model.explain(prepared, **request)


def _explain_items(
    batches: Iterator[Batch], model: LoadedModel, request: Mapping[str, Any]
) -> Iterator[Explanation]:
    """Explain batches as they are asked for, and keep none of them."""
    for number in itertools.count():
        try:
            batch = next(batches)
            explanation = _explain_batch(batch, model, request)
        except StopIteration:
            return
        except WhenceError as error:
            raise WhenceError(f"Item {number}: {error}") from error
        yield explanation
        del batch, explanation
