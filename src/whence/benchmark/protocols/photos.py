"""What protocols share that judge methods on photos alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from whence.benchmark.photos import PreparedPhoto, compute_by_shape
from whence.benchmark.protocols.base import BenchmarkProtocol, Row
from whence.methods import MethodSpecification
from whence.models import LoadedModel


@dataclass
class PhotoProtocol(BenchmarkProtocol[PreparedPhoto]):
    """Photos of equal shape are judged together."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)

    @override
    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        return compute_by_shape(samples, lambda photos: self.judge_photos(loaded, photos, method))

    def judge_photos(
        self, loaded: LoadedModel, photos: Sequence[PreparedPhoto], method: MethodSpecification
    ) -> list[Row]:
        """Compute the rows of photos of equal shape."""
        raise NotImplementedError
