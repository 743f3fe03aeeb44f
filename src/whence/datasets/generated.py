"""Samples that are made, not read: each holds what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from whence.datasets.base import Dataset, Sample


@dataclass(frozen=True, slots=True)
class MadeRecord:
    """A text that was made, with its answer and what that follows from."""

    sample: Sample

    def read_sample(self, name: str) -> Sample:
        """Return the sample."""
        return dataclasses.replace(self.sample, name=name)

    def list_facts(self) -> list[object]:
        """Return the text, the answers, and the spans of cues and passages."""
        one = self.sample
        return [one.content, one.answer, one.rival, list(one.cues), list(one.passages)]


def make_text_dataset(name: str, samples: Sequence[Sample]) -> Dataset:
    """Make a dataset of texts that were made."""
    return Dataset(name, {one.name: MadeRecord(one) for one in samples}, "text")
