"""The answer: scores, what they belong to, and how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whence._util.saved import SUFFIX, explain_damage, read_form, read_parts, write_parts
from whence._util.text import to_printable
from whence.errors import WhenceError
from whence.explanation.classes import list_classes, select_class
from whence.explanation.heatmaps import find_picture_grid, upsample_scores
from whence.explanation.images import select_images
from whence.explanation.matrix import ScoreMatrix, make_dataframe, tabulate_classes
from whence.explanation.media import Media
from whence.explanation.parts import Check, ExplainedClass, KeptEvidence
from whence.explanation.photo import Photo
from whence.explanation.regions import PeakRegion, list_regions
from whence.explanation.saving import pack, unpack
from whence.explanation.selection import select_samples
from whence.explanation.shown import Shown
from whence.explanation.summary import SAME_FOR_EVERY_CLASS, format_line, list_provenance
from whence.explanation.table import list_unit_records
from whence.explanation.words import list_word_scores
from whence.layout import Tokens
from whence.layout.grouping import Grouping

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(repr=False)
class Explanation(Shown):
    """Scores for the parts of a batch of inputs.

    Attributes:
        scores: (batch, units), or (batch, classes, units) if several classes were asked for. Units
            are patches in reading order, segments of a signal, or tokens.
        target: (batch,) or (batch, classes), the explained classes or tokens, by index.
        logits: (batch, all classes), as a plain forward gives them; of several tokens, (batch,
            tokens, vocabulary); empty where targets are none of logits.
        grid: Number of units along each axis: rows and columns of an image; frames, rows and
            columns of a video; segments of a signal. None for text, and for plain tokens.
        axes: The names of the grid's axes: row, column, frame; time, frequency; segment.
        image_size: Height and width of the image that the model saw, or of a spectrogram the
            lengths of both axes; None if it is neither.
        image_sizes: Height and width of each image of each sample, where a sample may have several
            or a smaller one; None if each sample is an image of image_size. See `images`.
        length: Length of the signal that the model saw; None if it is none.
        tokens: The tokens and the words they belong to, where a tokenizer gives them.
        target_names: Names of the explained classes, where the model names them.
        areas: Where in the picture the explained boxes, places or masks lie, in the shape of
            target_names: a `TargetArea`, or None; None where targets lie nowhere.
        multi_label: Whether several classes can hold at once, each with a probability of its own.
        method: Name of the method.
        class_specific: Whether another class could have got another explanation.
        settings: Its options, the rule set if it propagates relevance, and the precision if it is
            not that of the weights.
        details: What the method told beside the scores, for each sample, or sample and class.
        version: The version of whence.
        checks: What was verified about it.
        values: The explained scalars, in the shape of target, where they are no classes.
        probabilities: Their probabilities, NaN where there is none; None for classes.
        model: The name of the model; empty if it is not known.
        model_knows: What it knows, such as "cat or dog", where its folder says so.
        photos: The photo of each sample, and what the model saw of it; None if not known.
        media: The video, the waveform or the spectrogram of each sample; None of photos and texts.
        evidence: The readings behind the scores, if they were kept. Not saved.
    """

    scores: Tensor
    target: Tensor
    logits: Tensor
    grid: tuple[int, ...] | None = None
    axes: tuple[str, ...] = ()
    image_size: tuple[int, int] | None = None
    image_sizes: list[list[tuple[int, int]]] | None = None
    length: int | None = None
    tokens: Tokens | None = None
    target_names: list[Any] | None = None
    areas: list[Any] | None = None
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
    model_knows: str = ""
    photos: list[Photo] | None = field(default=None, repr=False)
    media: list[Media] | None = field(default=None, repr=False)
    evidence: KeptEvidence | None = field(default=None, repr=False, compare=False)

    _form: ClassVar[str] = "whence explanation 1"

    def __repr__(self) -> str:
        """The explanation in one line, without its numbers."""
        return format_line(self)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.scores)

    def __getitem__(self, samples: int | slice) -> Self:
        """The explanation of one sample, or of some: a batch again."""
        return select_samples(self, samples)

    def heatmap(self, size: int | tuple[int, ...] | None = None) -> Tensor:
        """Scores as images, linearly upsampled from the grid of units.

        Args:
            size: Height and width; of a video also frames, height and width; of a signal its
                length. The size of the model's input if left out.

        Returns:
            (batch, height, width), or (batch, classes, height, width); of a video with frames
            before the height, as many as the grid has, or as asked for; of a signal (batch,
            length). Axes are in the order that the model's input has: of a spectrogram as an AST
            takes it, (batch, time, frequency).

        Raises:
            WhenceError: The explanation is of tokens, or the size is none.
        """
        return upsample_scores(self, size)

    def images(self, sample: int = 0) -> dict[str, Self]:
        """The images of one sample by their names, "image 1" and so on: each an explanation.

        Args:
            sample: Which sample of the batch; one without images has none.

        Raises:
            WhenceError: The explanation is not of images, or there is no such sample.
        """
        return select_images(self, sample)

    @property
    def picture_grid(self) -> tuple[int, int] | None:
        """Rows and columns of the scores as a picture, frames below each other; None for texts."""
        return find_picture_grid(self.grid, self.axes)

    def words(self, sample: int = 0, target: int = 0) -> list[tuple[str, float]]:
        """The words of a text with their scores: the sum over each word's tokens.

        Args:
            sample: Which text of the batch.
            target: Which of the explained classes, counted from 0, if there are several.

        Raises:
            WhenceError: The explanation does not know its words, or there is no such text or class.
        """
        return list_word_scores(self, sample, target)

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
        """The scores of one sample as a table of pandas, one line for each class and unit.

        Patches of a photo have a row and a column of the grid, and x and y: their middle in pixels
        of the whole photo.

        Args:
            sample: Which sample of the batch.
            by: Of texts, as for `matrix`.

        Raises:
            WhenceError: There is no such sample or grouping; or pandas is not installed.
        """
        return make_dataframe(self._list_records(sample, by))

    def _list_records(self, sample: int, by: Grouping) -> list[dict[str, object]]:
        if self.grid is not None:
            return list_unit_records(self, sample)
        return self.matrix(sample, by).to_records()

    def regions(
        self, sample: int = 0, target: int = 0, *, against: bool = False
    ) -> list[PeakRegion]:
        """The peak regions of the map of a photo or a sound: parts that hold much of the evidence.

        They are none where the map is flat or lies as noise does; see `find_regions`.

        Args:
            sample: Which photo of the batch.
            target: Which of the explained classes, counted from 0, if there are several.
            against: Whether to take the evidence against the class, which are scores below 0.

        Raises:
            WhenceError: The explanation is not of photos, or there is no such sample or class.
        """
        scores = self.get_class(sample, target).scores
        return list_regions(scores, self.grid, against, self.axes)

    def describe(self, sample: int = 0) -> str:
        """Say which classes of a sample were explained, and where the evidence for each is."""
        from whence.render.sentences import describe_decisions

        return describe_decisions(self, sample)

    def numpy(self) -> NDArray[np.float64]:
        """The scores as an array."""
        return self.scores.detach().double().cpu().numpy()

    def classes(self, sample: int = 0) -> list[ExplainedClass]:
        """The explained classes of a sample, in the order they were asked for.

        Raises:
            WhenceError: There is no such sample, or its scores are not finite.
        """
        return list_classes(self, sample)

    def get_class(self, sample: int = 0, target: int = 0) -> ExplainedClass:
        """One of the explained classes of a sample, counted from 0.

        Raises:
            WhenceError: There is no such sample or class, or its scores are not finite.
        """
        return select_class(self.classes(sample), target)

    @property
    def class_note(self) -> str:
        """A note that every class gets the same scores, where the method is not class-specific."""
        if self.class_specific or not self.method:
            return ""
        return to_printable(f"{self.method} is {SAME_FOR_EVERY_CLASS}")

    @property
    def notes(self) -> list[str]:
        """What a reader should know: the class note, and what is in doubt."""
        doubts = [check.sentence for check in self.checks if check.status == "doubt"]
        return [note.removesuffix(".") for note in (self.class_note, *doubts) if note]

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """Names and values of the method, the model, the settings and the version of whence."""
        return list_provenance(self)

    def save(self, path: str | Path, by: Grouping = "word") -> None:
        """Write a file, whole or not at all, in the form that its name's ending says.

        Args:
            path: Where to write. .png, .jpg and .svg are a figure of the first sample, .gif of a
                video that moves, .html a page, .json all for other programs, .csv the scores, .npz
                arrays of numpy; .safetensors is all that `load` reads again.
            by: As for `matrix`, where scores of texts are written to be read.

        Raises:
            WhenceError: The name ends otherwise, the explanation cannot be drawn, or the place
                cannot be written.
        """
        if Path(path).suffix.lower() == SUFFIX:
            write_parts(path, self._form, *self._to_parts())
            return
        from whence.render import files

        files.save(self, path, by)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the .safetensors that `save` wrote; generated text is a `Generation` again.

        Raises:
            WhenceError: There is no such file, or it is damaged or not an explanation.
        """
        form = read_form(path)
        kind = next((one for one in cls.__subclasses__() if one._form == form), cls)
        facts, tensors = read_parts(path, kind._form)
        with explain_damage(path):
            return kind._from_parts(facts, tensors)

    def _to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return pack(self)

    @classmethod
    def _from_parts(cls, saved: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        return cls(**unpack(saved, tensors))
