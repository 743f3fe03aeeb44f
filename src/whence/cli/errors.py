"""What a user can put right, told in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from whence.errors import WhenceError


@contextmanager
def sentences() -> Iterator[None]:
    """What a user can put right is told in one sentence, with exit code 2."""
    try:
        yield
    except WhenceError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
