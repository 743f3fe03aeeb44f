"""Read inputs and prepare them for a model; what fails is told, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whence._util.text import first_line
from whence.errors import WhenceError
from whence.inputs.sources import Content
from whence.models import PreparedBatch

Preprocessor = Callable[[Sequence[Any]], PreparedBatch]


class Readable(Protocol):
    """An input that is not read yet."""

    def read(self) -> Content:
        """Read the photo, text, video or sound; a `WhenceError` says why it cannot be read."""


@dataclass(frozen=True)
class Failure:
    """Why an input cannot be explained."""

    why: str


def read_input(one: Readable) -> Content | Failure:
    """Read an input."""
    try:
        return one.read()
    except WhenceError as error:
        return Failure(str(error))
    except Exception as error:  # one odd input must not end the others
        return Failure(f"It cannot be read: {type(error).__name__}: {first_line(error)}.")


def prepare_input(
    content: Content | Failure, preprocessor: Preprocessor
) -> PreparedBatch | Failure:
    """Prepare what was read of one input, as a batch of one."""
    if isinstance(content, Failure):
        return content
    try:
        return preprocessor([content])
    except WhenceError as error:
        return Failure(str(error))
    except Exception as error:  # one odd input must not end the others
        return Failure(f"It cannot be prepared: {type(error).__name__}: {error}.")
