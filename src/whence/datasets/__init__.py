"""Photos and texts with the truth about them, in the formats in which they are published."""

from whence.datasets.formats import FORMATS, Format, load
from whence.datasets.sample import Dataset, Label, Sample

__all__ = ["FORMATS", "Dataset", "Format", "Label", "Sample", "load"]
