"""Load a model by name, with its preprocessing, class names and Explainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from whence._util.collecting import hold_off_while_loading
from whence._util.model_name import shorten_model_name
from whence._util.text import first_line
from whence.errors import WhenceError
from whence.explainer import Explainer
from whence.explanation import Explanation, Photo
from whence.explanation.media import Media
from whence.inputs.sources import NOUNS, Kind
from whence.layout import Tokens
from whence.layout.words import cut_words
from whence.models.dense import aim_at_places, find_dense_task
from whence.models.folder import EMBEDDED_LANGUAGE_MODEL, find_embedded
from whence.models.masked import aim_at_mask
from whence.targets import AnyTarget, AskedClasses, SeveralTargets, parse_targets

if TYPE_CHECKING:
    from tokenizers import Encoding

BatchInputs: TypeAlias = Tensor | Mapping[str, Any]
"""A batch as a model takes it: pixels, or what a tokenizer returned."""


@dataclass
class PreparedBatch:
    """A batch as the model takes it.

    Attributes:
        inputs: The model's input: pixels, or tokenised texts.
        notes: For each input, the changes that its owner should know of.
        photos: For each input, the photo and what the model saw of it; None of others.
        texts: For each input, the text; None of others.
        media: For each input, the video or the sound; None of photos and texts.
    """

    inputs: BatchInputs
    notes: list[list[str]]
    photos: list[Photo] | None = None
    texts: list[str] | None = None
    media: list[Media] | None = None

    def __len__(self) -> int:
        """Number of photos or texts."""
        return len(self.notes)


@dataclass
class LoadedModel:
    """A model with everything that it needs to explain photos or texts.

    Attributes:
        name: Its name, as the user gave it.
        model: The model itself.
        kind: The kind of its inputs, ``"image"``, ``"text"``, ``"video"`` or ``"audio"``.
        class_names: Names of its classes, where they are known.
        class_count: The number of its classes.
        preprocessor: Prepares a batch of photos or texts for the model.
        tokenizer: The tokenizer of a text model.
        device: The device of the model.
        compile: Whether to compile at first use; if not, as `Explainer` does of itself.
        precision: As for `Explainer`.
        generates: Whether it is a causal language model, whose classes are tokens.
        knows: What it knows, where its folder says so; see `read_knowledge`.
    """

    name: str
    model: nn.Module
    kind: Kind
    class_names: dict[int, str]
    class_count: int
    preprocessor: Callable[[Sequence[Any]], PreparedBatch] = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)
    device: torch.device | str = "cpu"
    compile: bool = False
    precision: str | None = None
    generates: bool = False
    knows: str = ""

    @cached_property
    def explainer(self) -> Explainer:
        """The Explainer of all batches: one, so that its compiled programs are used again."""
        return Explainer(
            self.model,
            class_names=None if self.generates else self.class_names,
            tokenizer=self.tokenizer,
            compile=True if self.compile else "auto",
            precision=self.precision,  # type: ignore[arg-type]  # which refuses other words
        )

    @property
    def title(self) -> str:
        """The name to show: of a folder its last part, and that a model is embedded."""
        return shorten_model_name(self.name)

    def to_eager(self) -> LoadedModel:
        """Return this model without compiling, for inputs of which few have the same shape."""
        return dataclasses.replace(self, compile=False)

    def prepare(self, inputs: Sequence[Any]) -> PreparedBatch:
        """Prepare photos (RGB) or texts as a batch on the model's device.

        Raises:
            WhenceError: An input holds nothing that the model could read, or sizes differ.
        """
        return self.move(self.preprocessor(inputs))

    def move(self, prepared: PreparedBatch) -> PreparedBatch:
        """Move a prepared batch to the model's device, and pixels to the type of its weights."""
        return dataclasses.replace(prepared, inputs=self._move(prepared.inputs))

    def take_tensors(self, inputs: Tensor | Mapping[str, Any]) -> PreparedBatch:
        """Take a batch that was prepared for the model elsewhere, and move it to its device."""
        moved = self._move(inputs)
        tensors = [moved] if isinstance(moved, Tensor) else list(moved.values())
        count = next((len(x) for x in tensors if isinstance(x, Tensor) and x.dim()), 0)
        return PreparedBatch(moved, [[] for _ in range(count)])

    def _move(self, inputs: BatchInputs) -> BatchInputs:
        """Move a batch to the device of the model, and pixels to the type of its weights."""
        if isinstance(inputs, Tensor):
            return self._move_tensor(inputs)
        moved = {n: self._move_tensor(v) if isinstance(v, Tensor) else v for n, v in inputs.items()}
        if not hasattr(inputs, "encodings"):
            return moved
        return type(inputs)(moved, inputs.encodings)  # type: ignore[call-arg]

    def _move_tensor(self, tensor: Tensor) -> Tensor:
        kinds = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        dtype = next(kinds, None) if tensor.is_floating_point() else None
        return tensor.to(self.device, dtype)

    def check_classes(
        self,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
    ) -> None:
        """Refuse classes that the model does not have; tokens and boxes are looked up later."""
        if find_dense_task(self.model) is not None:
            return
        asked = parse_targets(target, against, classes, generates=self.generates)
        if isinstance(asked, AskedClasses):
            logits = torch.zeros(1, self.class_count)
            asked.resolve_classes(logits, self.class_names)
            asked.resolve_against(logits, self.class_names)

    def check_is_photo_or_text(self, what: str) -> None:
        """Refuse a model of videos or sounds where only photos and texts are explained.

        Args:
            what: What is for photos and texts, in words.
        """
        if self.kind not in ("image", "text"):
            raise WhenceError(
                f"{what} is for photos and texts; the model '{self.title}' explains "
                f"{NOUNS[self.kind]}."
            )

    def explain(self, prepared: PreparedBatch, **request: Any) -> Explanation:
        """Explain a prepared batch; the arguments are those of `Explainer.explain`."""
        if self.tokenizer is not None:
            request = aim_at_mask(self.model, self.tokenizer, prepared.inputs, request)
        request = aim_at_places(self.model, request)
        explanation: Explanation = self.explainer.explain(prepared.inputs, **request)
        self.attach_inputs(explanation, prepared)
        return explanation

    def run(self, inputs: BatchInputs) -> Any:
        """Run the model on a batch, and return what it returns."""
        return self.model(inputs) if isinstance(inputs, Tensor) else self.model(**inputs)

    def attach_inputs(self, explanation: Explanation, prepared: PreparedBatch) -> None:
        """Add the photos or texts of a prepared batch to its explanation, and the model's name."""
        encodings = getattr(prepared.inputs, "encodings", None)
        if explanation.tokens is not None and encodings and prepared.texts is not None:
            explanation.tokens = place_in_texts(explanation.tokens, encodings, prepared.texts)
        explanation.model, explanation.model_knows = self.title, self.knows
        explanation.photos = prepared.photos
        explanation.media = prepared.media or explanation.media


@hold_off_while_loading()
def load(
    name: str | Path | None = None,
    kind: Kind | None = None,
    weights: str | Path | None = None,
    device: str | None = None,
    *,
    compile: bool = False,
    precision: str | None = None,
) -> LoadedModel:
    """Load a model, its preprocessing and the names of its classes.

    Args:
        name: A folder that transformers saved to; a name on the hub; ``timm:NAME``;
            ``torchvision:NAME``; one of `list_embedded`; or None for the embedded model that suits
            the kind of input.
        kind: ``"image"``, ``"text"``, ``"video"`` or ``"audio"``. Needed only for an embedded
            model; otherwise a model of another kind is an error.
        weights: A safetensors file, for models of timm and torchvision.
        device: Where to run, such as ``"cpu"`` or ``"cuda"``; the best there is if left out.
        compile: Whether to compile explanations, as `Explainer` does.
        precision: Of matrix products: ``"tf32"`` on a GPU, or ``"bfloat16"``.

    Raises:
        WhenceError: There is no such model, or it cannot be used.
    """
    from whence.models import timm_models, torchvision_models, transformers_models

    place = find_device(device)
    if precision == "tf32" and place.type == "cpu":
        raise WhenceError(
            "The precision tf32 needs a GPU, and the model runs on a CPU; leave it out, or give "
            "bfloat16."
        )
    libraries = {"timm": timm_models.load, "torchvision": torchvision_models.load}
    library, _, rest = str(name or "").partition(":")
    if library in libraries:
        loaded = libraries[library](rest, weights)
    elif weights is not None:
        raise WhenceError("A weights file is for timm:NAME and torchvision:NAME only.")
    else:
        loaded = transformers_models.load(find_embedded(name, kind) or name or "")
    if kind is not None and kind != loaded.kind:
        raise WhenceError(
            f"The model '{loaded.title}' explains {NOUNS[loaded.kind]}, not {NOUNS[kind]}."
        )
    loaded.model.to(place).eval()
    loaded.device, loaded.compile, loaded.precision = place, compile, precision
    _ = loaded.explainer  # built at once, since it refuses an unknown precision
    return loaded


def load_language_model(
    name: str | Path | None = None,
    device: str | None = None,
    *,
    precision: str | None = None,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        name: A folder or a name on the hub, as for `load`; None for the embedded one.
        device: As for `load`.
        precision: As for `load`.

    Raises:
        WhenceError: There is no such model, or it does not generate text.
    """
    if name is None and not EMBEDDED_LANGUAGE_MODEL.is_dir():
        raise WhenceError("This installation carries no language model; name one.")
    loaded = load(name or EMBEDDED_LANGUAGE_MODEL, "text", None, device, precision=precision)
    if not loaded.generates:
        raise WhenceError(
            f"The model '{loaded.name}' does not generate text. Name a causal language model, such "
            f"as a GPT-2 or a Llama."
        )
    return loaded


def find_device(name: str | None) -> torch.device:
    """Find a device by name; without one, the GPU if there is one, and otherwise the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise WhenceError(f"There is no device '{name}' here: {first_line(error)}.") from None
    if device.type == "meta":
        raise WhenceError("The device 'meta' computes nothing.")
    return device


def place_in_texts(tokens: Tokens, encodings: list[Encoding], texts: list[str]) -> Tokens:
    """Place tokens in the texts as they were written, not as the tokenizer spells them."""
    offsets = [
        [o if n is not None else None for o, n in zip(e.offsets, e.word_ids, strict=True)]
        for e in encodings
    ]
    words = [cut_words(*one) for one in zip(texts, offsets, tokens.words, strict=True)]
    return dataclasses.replace(tokens, texts=words, contents=list(texts), offsets=offsets)


def find_word_spans(encoding: Encoding) -> dict[int, tuple[int, int]]:
    """Find where each word of a fast tokenizer's encoding stands in the text: [start, end)."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            first, last = spans.get(word, (start, end))
            spans[word] = (min(first, start), max(last, end))
    return spans


def select_sample(explanation: Explanation, sample: int, prepared: PreparedBatch) -> Explanation:
    """Select the explanation of one input of a batch, without the padding of the batch."""
    one = explanation[sample]
    if one.tokens is None:
        return one
    mask = prepared.inputs.get("attention_mask")  # type: ignore[union-attr]
    if mask is None:
        return one
    real = mask[sample].to(one.scores.device).bool()
    tokens = one.tokens.select_tokens(0, real.tolist())
    return dataclasses.replace(one, scores=one.scores[..., real], tokens=tokens)
