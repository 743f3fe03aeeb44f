"""What is written of one input: the job, the entry of the summary, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from whence.explanation import Explanation
from whence.inputs.sources import Kind, Source


class ClassSummary(TypedDict):
    """One explained class: its probability, the highest scores, and a photo's peak regions.

    A box, a place or a mask has an area: its kind, and left, top, right and bottom as shares of
    what the model saw.
    """

    index: int
    name: str
    probability: float | None
    top: list[dict[str, Any]]
    regions: NotRequired[list[dict[str, Any]]]
    area: NotRequired[dict[str, Any]]
    words: NotRequired[list[dict[str, Any]]]  # of the text that the input is compared with


class SummaryEntry(TypedDict):
    """The summary of one input."""

    name: str
    input: str
    kind: Kind
    model: str
    files: dict[str, str]
    classes: list[ClassSummary]
    notes: list[str]
    error: str | None
    method: NotRequired[str]
    class_specific: NotRequired[bool]
    settings: NotRequired[dict[str, Any]]
    details: NotRequired[Any]
    sentence: NotRequired[str]
    model_knows: NotRequired[str]
    checks: NotRequired[list[dict[str, Any]]]
    texts: NotRequired[list[dict[str, Any]]]  # that the input is compared with, and how they fit


@dataclass(frozen=True)
class OutputSettings:
    """The folder and the form of result files."""

    folder: Path
    image_format: str = "png"  # or "jpg", "svg", or "html" for a page
    force: bool = False  # whether results may replace files
    outlines: bool = False  # whether figures outline the peak regions of maps


@dataclass(frozen=True)
class InputResult:
    """The result of one input, whose files are written."""

    index: int  # which of the inputs it is, counted from 0
    entry: SummaryEntry
    explanation: Explanation | None = None  # without its photo; None if it failed


@dataclass(frozen=True)
class WriteJob:
    """What is written of one input, and where: all that another process needs."""

    output: OutputSettings
    index: int  # which of the inputs it is, counted from 0
    name: str
    source: Source
    files: dict[str, str]
    model: str
    explanation: Explanation | None = None  # None if it failed
    notes: Sequence[str] = ()
    error: str | None = None
