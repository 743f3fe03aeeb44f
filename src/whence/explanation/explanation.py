"""The answer: scores, what they belong to, and how they were made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from whence._util.saved import explain_damage, read_form, read_parts, write_parts
from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.explanation.matrix import ScoreMatrix, tabulate_classes, to_pandas
from whence.explanation.parts import Check, ExplainedClass, KeptEvidence
from whence.explanation.photo import Photo, decode_photos, encode_photos
from whence.explanation.selection import select_samples
from whence.layout import Tokens, sum_over_words
from whence.layout.grouping import Grouping
from whence.targets import to_probabilities

if TYPE_CHECKING:
    from pandas import DataFrame
    from PIL.Image import Image

_SAME_FOR_EVERY_CLASS = "the same for every class"
TENSORS = ("scores", "target", "logits")
_MAYBE = ("values", "probabilities")
_FACTS = (
    *("grid", "image_size", "tokens", "target_names", "multi_label"),
    *("method", "class_specific", "settings", "details", "version", "checks", "model"),
)


@dataclass
class Explanation:
    """Scores for the parts of a batch of inputs.

    Attributes:
        scores: (batch, units), or (batch, classes, units) if several classes were asked for. Units
            are patches in reading order, segments of a signal, or tokens.
        target: (batch,) or (batch, classes), the explained classes or tokens, by index.
        logits: (batch, all classes), as a plain forward gives them; of several tokens, (batch,
            tokens, vocabulary); empty where targets are none of logits.
        grid: Number of units along each axis: rows and columns of an image; frames, rows and
            columns of a video; segments of a signal. None for text, and for plain tokens.
        image_size: Height and width of the image that the model saw; None if it is none.
        tokens: The tokens and the words they belong to, where a tokenizer gives them.
        target_names: Names of the explained classes, where the model names them.
        multi_label: Whether several classes can hold at once, each with a probability of its own.
        method: Name of the method.
        class_specific: Whether another class could have got another explanation.
        settings: Its options, the rule set if it propagates relevance, and the precision if it is
            not that of the weights.
        details: What the method had to tell beside the scores: for each sample, or each sample and
            class, as scores are.
        version: The version of whence.
        checks: What was verified about it.
        values: The explained scalars, in the shape of target, where they are no classes.
        probabilities: Their probabilities, NaN where there is none; None for classes.
        model: The name of the model; empty if it is not known.
        photos: The photo of each sample, and what the model saw of it; None if not known.
        evidence: The readings behind the scores, if they were kept. Not saved.
    """

    scores: Tensor
    target: Tensor
    logits: Tensor
    grid: tuple[int, ...] | None = None
    image_size: tuple[int, int] | None = None
    tokens: Tokens | None = None
    target_names: list[Any] | None = None
    multi_label: bool = False
    method: str = ""
    class_specific: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    details: list[Any] | None = None
    version: str = ""
    checks: list[Check] = field(default_factory=list)
    values: Tensor | None = None
    probabilities: Tensor | None = None
    model: str = ""
    photos: list[Photo] | None = field(default=None, repr=False)
    evidence: KeptEvidence | None = field(default=None, repr=False, compare=False)

    _form: ClassVar[str] = "whence explanation 1"

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.scores)

    def __getitem__(self, samples: int | slice) -> Self:
        """The explanation of one sample, or of some: a batch again."""
        return select_samples(self, samples)

    def heatmap(self, size: tuple[int, int] | None = None) -> Tensor:
        """Scores as images, bilinearly upsampled from the grid of patches.

        Args:
            size: Height and width; the size of the model's input if left out.

        Returns:
            (batch, height, width), or (batch, classes, height, width); of a video with frames
            before the height, as many as the grid has.

        Raises:
            WhenceError: The explanation is not of an image.
        """
        if self.grid is None:
            raise WhenceError(
                "This explanation is of tokens, which have no heatmap; see .words(). If they are "
                "patches and whence could not prove so, say so: Explainer(model, "
                "layout=Layout(grid=(rows, columns), prefix=1))."
            )
        if len(self.grid) < 2:
            raise WhenceError(
                f"This explanation is of {self.grid[0]} segments of a signal, which have no "
                f"heatmap; see .scores."
            )
        rows, columns = self.grid[-2:]
        maps = self.scores.reshape(-1, self.scores.shape[-1] // (rows * columns), rows, columns)
        size = size or self.image_size or (rows, columns)
        maps = F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)
        return maps.reshape(*self.scores.shape[:-1], *self.grid[:-2], *maps.shape[-2:])

    @property
    def picture_grid(self) -> tuple[int, int] | None:
        """Rows and columns of a picture of the scores; None if there is none, as for texts.

        Frames of a video are below each other.
        """
        if self.grid is None or len(self.grid) < 2:
            return None
        return math.prod(self.grid[:-1]), self.grid[-1]

    def words(self, sample: int = 0, target: int = 0) -> list[tuple[str, float]]:
        """The words of a text with their scores: the sum over each word's tokens.

        Args:
            sample: Which text of the batch.
            target: Which of the explained classes, counted from 0, if there are several.

        Raises:
            WhenceError: The explanation does not know its words.
        """
        if self.tokens is None:
            raise WhenceError(
                "This explanation has no words. Pass what a fast tokenizer returned as inputs, or "
                "the tokenizer: Explainer(model, tokenizer=tokenizer)."
            )
        scores = self.scores[sample] if self.scores.dim() == 2 else self.scores[sample, target]
        joined = sum_over_words(
            self.tokens.strings[sample], self.tokens.words[sample], scores.tolist()
        )
        if not self.tokens.texts:
            return joined
        numbers = dict.fromkeys(n for n in self.tokens.words[sample] if n is not None)
        texts = self.tokens.texts[sample]
        return [(texts[n], score) for n, (_, score) in zip(numbers, joined, strict=True)]

    def matrix(self, sample: int = 0, by: Grouping = "token") -> ScoreMatrix:
        """The scores of one text as a table: explained classes by tokens, words, ….

        Args:
            sample: Which text of the batch.
            by: ``"token"``, ``"word"`` or ``"sentence"``; special tokens belong to no word. Or
                passages: their texts by name, or their first character in the text and the one
                after their last; a column "rest" has all other tokens.

        Raises:
            WhenceError: The explanation is of images, or there is no such sample or grouping.
        """
        if self.grid is not None:
            raise WhenceError("This explanation is not of tokens; see .scores and .heatmap().")
        return tabulate_classes(self.classes(sample), self.tokens, sample, by)

    def to_pandas(self, sample: int = 0, by: Grouping = "token") -> DataFrame:
        """The scores of one text as a table of pandas, one line for each score.

        Args:
            sample: Which text of the batch.
            by: As for `matrix`.

        Raises:
            WhenceError: As for `matrix`; or pandas is not installed.
        """
        return to_pandas(self.matrix(sample, by))

    def numpy(self) -> NDArray[np.float64]:
        """The scores as an array."""
        return self.scores.detach().double().cpu().numpy()

    def classes(self, sample: int = 0) -> list[ExplainedClass]:
        """The explained classes of a sample, in the order they were asked for.

        Raises:
            WhenceError: There is no such sample, or its scores are not finite.
        """
        self._check_sample(sample)
        units = self.scores.shape[-1]
        scores = self.scores[sample].detach().double().cpu().reshape(-1, units).numpy()
        if not np.isfinite(scores).all():
            raise WhenceError("The scores hold NaN or infinite values, which cannot be shown.")
        indices = self.target[sample].reshape(-1).tolist()
        names = self.target_names[sample] if self.target_names else None
        if names is None:
            names = [f"class {index}" for index in indices]
        elif not isinstance(names, list):
            names = [names]
        chances = self._list_probabilities(sample)
        return [
            ExplainedClass(index, to_printable(str(name)), chance, row)
            for index, name, chance, row in zip(indices, names, chances, scores, strict=True)
        ]

    def _list_probabilities(self, sample: int) -> list[float | None]:
        """The probability of each explained target of a sample; None where it has none."""
        if self.probabilities is not None:
            known = self.probabilities[sample].reshape(-1).tolist()
            return [None if math.isnan(one) else one for one in known]
        indices = self.target[sample].reshape(-1).tolist()
        logits = self.logits[sample].detach().double().reshape(-1)
        if len(logits) < 2 and not self.multi_label:
            return [None] * len(indices)  # a lone logit is a quantity
        chances = to_probabilities(logits, self.multi_label).tolist()
        return [chances[index] for index in indices]

    def _check_sample(self, sample: int) -> None:
        if not 0 <= sample < len(self):
            raise WhenceError(f"There is no sample {sample}; the samples are 0 to {len(self) - 1}.")

    def get_class(self, sample: int = 0, target: int = 0) -> ExplainedClass:
        """One of the explained classes of a sample, counted from 0.

        Raises:
            WhenceError: There is no such sample or class, or its scores are not finite.
        """
        classes = self.classes(sample)
        if not 0 <= target < len(classes):
            raise WhenceError(
                f"There is no explained class {target}; they are counted from 0 to "
                f"{len(classes) - 1}."
            )
        return classes[target]

    @property
    def class_note(self) -> str:
        """A note that every class gets the same scores, where the method is not class-specific."""
        if self.class_specific or not self.method:
            return ""
        return to_printable(f"{self.method} is {_SAME_FOR_EVERY_CLASS}")

    @property
    def notes(self) -> list[str]:
        """What a reader should know: the class note, and what is in doubt."""
        doubts = [check.sentence for check in self.checks if check.status == "doubt"]
        return [note.removesuffix(".") for note in (self.class_note, *doubts) if note]

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """Names and values of the method, its settings and the version of whence."""
        label = f" ({_SAME_FOR_EVERY_CLASS})" if self.class_note else ""
        facts = [("method", self.method + label), *self.settings.items()]
        facts.append(("whence", self.version))
        return [
            (to_printable(str(k)), to_printable(str(v))) for k, v in facts if v not in ("", None)
        ]

    def show(self, image: Image | None = None) -> None:
        """Display in a notebook, or print to a terminal: coloured words, or heatmaps.

        Args:
            image: The photo of the first sample, as the model saw it, to lay its heatmaps over.
        """
        from whence.render import display

        display.show(self, image)

    def _repr_html_(self) -> str:
        from whence.render import display

        return display.format_notebook_html(self)

    def save(self, path: str | Path, by: Grouping = "word") -> None:
        """Write a file, whole or not at all: all of it, or of texts something to read.

        Args:
            path: Where to write. A name that ends in .html gets a page of a text, .png or .svg a
                figure of the scores, .json or .csv the scores. Any other, such as .safetensors,
                gets all that `load` reads again.
            by: As for `matrix`, where scores are written to be read.

        Raises:
            WhenceError: The place cannot be written, or the explanation is not of texts.
        """
        from whence.render import files

        if Path(path).suffix.lower() in files.SUFFIXES:
            files.save(self, path, by)
            return
        write_parts(path, self._form, *self._to_parts())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; an explanation of generated text is a `Generation` again.

        Raises:
            WhenceError: There is no such file, or it is damaged or not an explanation.
        """
        form = read_form(path)
        kind = next((one for one in cls.__subclasses__() if one._form == form), cls)
        facts, tensors = read_parts(path, kind._form)
        with explain_damage(path):
            return kind._from_parts(facts, tensors)

    def _to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What is saved: facts as JSON, and tensors."""
        facts = {name: getattr(self, name) for name in _FACTS}
        facts["tokens"] = None if self.tokens is None else asdict(self.tokens)
        facts["checks"] = [asdict(check) for check in self.checks]
        tensors = {name: getattr(self, name) for name in (*TENSORS, *_MAYBE)}
        facts["photos"], pictures = None, dict[str, Tensor]()
        if self.photos is not None:
            facts["photos"], pictures = encode_photos(self.photos)
        known = {name: value for name, value in tensors.items() if value is not None}
        return facts, known | pictures

    @classmethod
    def _from_parts(cls, saved: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        facts = {"class_specific": True, "details": None, "checks": [], "model": "", **saved}
        facts["checks"] = [Check(**check) for check in facts["checks"]]
        for pair in ("grid", "image_size"):
            facts[pair] = None if facts[pair] is None else tuple(facts[pair])
        facts["tokens"] = None if facts["tokens"] is None else Tokens(**facts["tokens"])
        held: dict[str, Any] = {name: tensors[name] for name in TENSORS}
        held |= {name: tensors.get(name) for name in _MAYBE}
        boxes = saved.get("photos")
        photos = None if boxes is None else decode_photos(boxes, tensors)
        return cls(**held, **{name: facts[name] for name in _FACTS}, photos=photos)
