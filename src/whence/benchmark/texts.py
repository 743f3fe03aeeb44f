"""Prepare texts of samples, with their words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from whence.faithfulness.texts import TextUnits
from whence.models import LoadedModel, PreparedBatch

if TYPE_CHECKING:
    from whence.datasets import Sample


class PreparedText(NamedTuple):
    """A tokenised text with its words."""

    name: str
    sample: Sample
    batch: PreparedBatch
    units: TextUnits


def prepare_text(loaded: LoadedModel, sample: Sample) -> PreparedText:
    """Tokenise a text, and find its words."""
    batch = loaded.preprocessor([sample.content])
    return PreparedText(sample.name, sample, batch, TextUnits(loaded, batch))
