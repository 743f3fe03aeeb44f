"""What datasets of every format have in common."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from whence.datasets.sample import Sample
from whence.errors import WhenceError
from whence.inputs.sources import Kind

Record = TypeVar("Record")


class Listed(ABC, Generic[Record]):
    """A dataset that knows, for each name, where the sample is.

    Args:
        name: The format, and which dataset of that format.
        records: For each sample, in order, what is needed to read it.
    """

    kind: Kind = "image"

    def __init__(self, name: str, records: Mapping[str, Record]) -> None:
        self.name = name
        self._records = dict(records)

    def names(self) -> list[str]:
        """The names of all samples, in a fixed order, without reading them."""
        return list(self._records)

    def read(self, name: str) -> Sample:
        """One sample.

        Raises:
            WhenceError: It is broken, or there is none of that name; the message names it.
        """
        if name not in self._records:
            raise WhenceError(f"The dataset {self.name} has no sample '{name}'.")
        try:
            return self._sample(name, self._records[name])
        except WhenceError as error:
            if f"{name}'" in str(error):
                raise
            raise WhenceError(f"The sample '{name}' cannot be used: {error}") from error

    def fingerprint(self) -> str:
        """SHA-256 over each sample's name, file sizes and label, but not over its photo."""
        digest = hashlib.sha256()
        for name, record in self._records.items():
            # As ASCII, since names of files need not be text.
            digest.update(json.dumps([name, *self._facts(record)]).encode() + b"\n")
        return digest.hexdigest()

    @abstractmethod
    def _sample(self, name: str, record: Record) -> Sample:
        """Read one sample."""

    @abstractmethod
    def _facts(self, record: Record) -> list[Any]:
        """What of a sample enters the fingerprint, as JSON takes it."""
