"""Read datasets of photos and texts, with labels and annotations, in their published formats."""

from whence.datasets.base import Dataset, Label, Record, Sample
from whence.datasets.formats import FORMATS, DatasetFormat, load

__all__ = ["FORMATS", "Dataset", "DatasetFormat", "Label", "Record", "Sample", "load"]
