"""Import what image processors of transformers need, which takes seconds.

Processes that prepare photos are copies of one that imports this module.
"""

from contextlib import suppress
from importlib import import_module

with suppress(Exception):  # whatever is wrong with it is said when the model is loaded
    import_module("transformers.image_processing_utils")
