"""The model and the dataset of a benchmark run, named so that any process can load them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whence import datasets
from whence.benchmark.stored import ResultDataset, is_result
from whence.distributed import ResultFolder
from whence.distributed.restoring import load_model_again
from whence.errors import WhenceError
from whence.models import LoadedModel, load

if TYPE_CHECKING:
    from whence.datasets import Dataset


@dataclass(frozen=True)
class RunSources:
    """The model and the dataset, as `whence.benchmark.run` takes them."""

    data: str | Path | Dataset | None
    format: str | None = None
    split: str | None = None
    model: str | Path | LoadedModel | None = None
    weights: str | Path | None = None
    device: str | None = None
    compile: bool = False
    precision: str | None = None

    def load_dataset(self) -> Dataset:
        """Load the dataset, unless it is one."""
        if self.data is None:
            raise WhenceError("Name the folder or file of a dataset with --data.")
        if isinstance(self.data, str | Path):
            if self.format is None and is_result(self.data):
                if self.split is not None:
                    raise WhenceError(f"'{self.data}' holds results, which have no splits.")
                return ResultDataset(ResultFolder(self.data))
            return datasets.load(self.data, self.format, self.split)
        return self.data

    def load_model(self, dataset: Dataset) -> LoadedModel:
        """Load the model, unless it is loaded; without a name, the one that suits the dataset.

        That of a result is the one that made it.
        """
        if isinstance(self.model, LoadedModel):
            return self.model
        if isinstance(dataset, ResultDataset) and self.model is None:
            weights = None if self.weights is None else Path(self.weights)
            how = (dataset.folder, None, weights, self.device)
            return load_model_again(*how, compile=self.compile, precision=self.precision)
        kind = None if self.model else dataset.kind
        named = (self.model, kind, self.weights, self.device)
        loaded = load(*named, compile=self.compile, precision=self.precision)
        loaded.check_is_photo_or_text("The benchmark")
        return loaded
