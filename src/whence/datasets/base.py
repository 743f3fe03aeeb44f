"""The base of all datasets: samples listed by name, read one at a time, and fingerprinted."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from whence.datasets.sample import Sample
from whence.errors import WhenceError
from whence.inputs.sources import Kind

Record = TypeVar("Record")
JsonValue = int | str | list[str] | None


class ListedDataset(ABC, Generic[Record]):
    """A dataset that keeps a record for each sample, from which it is read.

    Args:
        name: The format, and which dataset of that format.
        records: The records of all samples, by name and in order.
    """

    kind: Kind = "image"

    def __init__(self, name: str, records: Mapping[str, Record]) -> None:
        self.name = name
        self._records = dict(records)

    def list_names(self) -> list[str]:
        """List the names of all samples, in a fixed order, without reading them."""
        return list(self._records)

    def read(self, name: str) -> Sample:
        """Read one sample.

        Raises:
            WhenceError: It is broken, or there is none of that name; the message names it.
        """
        if name not in self._records:
            raise WhenceError(f"The dataset {self.name} has no sample '{name}'.")
        try:
            return self._read_sample(name, self._records[name])
        except WhenceError as error:
            if f"{name}'" in str(error):
                raise
            raise WhenceError(f"The sample '{name}' cannot be used: {error}") from error

    def compute_fingerprint(self) -> str:
        """Compute SHA-256 over each sample's name, file sizes and label, but not over its photo."""
        digest = hashlib.sha256()
        for name, record in self._records.items():
            # As ASCII, since names of files need not be text.
            digest.update(json.dumps([name, *self._list_facts(record)]).encode() + b"\n")
        return digest.hexdigest()

    @abstractmethod
    def _read_sample(self, name: str, record: Record) -> Sample:
        """Read one sample."""

    @abstractmethod
    def _list_facts(self, record: Record) -> Sequence[JsonValue]:
        """List the values of a sample that enter the fingerprint."""
