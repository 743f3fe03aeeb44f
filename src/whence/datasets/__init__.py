"""Read datasets of photos and texts with labels, in the formats in which they are published."""

from whence.datasets.formats import FORMATS, DatasetFormat, load
from whence.datasets.sample import Dataset, Label, Sample

__all__ = ["FORMATS", "Dataset", "DatasetFormat", "Label", "Sample", "load"]
