"""The command `whence methods`: list the methods of explanation, or describe one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.table import Table

from whence._util.defaults import METHOD
from whence.cli.options import complete_method, open_console

EPILOG = """[bold]Examples[/bold]

    whence methods
    whence methods rollout"""


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method to describe.", autocompletion=complete_method)
    ] = None,
) -> None:
    """List the methods of explanation, or describe one of them with its options."""
    from whence.methods import registry

    if name is not None:
        typer.echo(str(registry.describe(name)))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("by class", no_wrap=True)
    table.add_column("what it is")
    for known in registry.available():
        about = registry.describe(known)
        only = "" if len(about.inputs) > 1 else f" For {about.inputs[0]}s only."
        table.add_row(known, "yes" if about.class_specific else "no", about.summary + only)
    console = open_console()
    console.print(table)
    console.print("whence methods NAME describes one: its paper, cost and options.")
    console.print(f"The default is {METHOD}.")
