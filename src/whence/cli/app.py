"""The Typer app `whence`: its commands, and its errors and warnings as sentences.

No module of the command line imports torch, numpy or Pillow before a command needs it.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from whence.cli import benchmark, explain, generate, methods, models, report, serve
from whence.cli.options import ALL_TEXT
from whence.cli.rich_parts import import_help
from whence.errors import WhenceError
from whence.version import __version__

_EPILOG = """[bold]Start with[/bold]

    whence explain cat.jpg
    whence explain "A wonderful film, and far too short."
    whence generate "Once upon a time, there was a girl named Lily. She"
    whence serve

Each command has its own --help."""


class _Commands(TyperGroup):
    """Commands that print a `WhenceError` as a sentence and end with exit code 2."""

    @override
    def invoke(self, ctx: Any) -> object:  # the type of its contexts is private to Typer
        try:
            return super().invoke(ctx)
        except WhenceError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(2) from None


import_help()
app = typer.Typer(
    name="whence",
    cls=_Commands,
    help="From which parts of its input did a Transformer's decision come?",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"whence {__version__}")
        raise typer.Exit


def _print_warning(
    message: Warning | str, category: type[Warning], *_: object, **_where: object
) -> None:
    """Print a warning as a sentence, without the line of code that gave it."""
    if category is UserWarning:
        typer.echo(f"Note: {str(message).removeprefix('Note: ')}", err=True)


@app.callback()
def _prepare_terminal(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    # A terminal that cannot show a letter shows a question mark, and the work goes on.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _print_warning


class _TextOptionCommand(TyperCommand):
    """A command whose option --text may stand without a value."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write --text as another option where no value follows it."""
        written = [
            ALL_TEXT if one == "--text" and after.startswith("-") and after != "-" else one
            for one, after in pairwise([*args, "--"])
        ]
        return list(super().parse_args(ctx, written))


def _add_command(
    command: Callable[..., None], epilog: str, cls: type[TyperCommand] | None = None
) -> None:
    """Add a command; lines of its docstring are joined to paragraphs, as terminals wrap them."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    # Typer reads them three times, and texts of them would be evaluated each time.
    command.__annotations__ = inspect.get_annotations(command, eval_str=True)
    app.command(help=text, epilog=epilog, cls=cls)(command)


_add_command(explain.explain, explain.EPILOG, _TextOptionCommand)
_add_command(generate.generate, generate.EPILOG)
_add_command(report.report, report.EPILOG, _TextOptionCommand)
_add_command(benchmark.benchmark, benchmark.EPILOG, benchmark.BenchmarkCommand)
_add_command(serve.serve, serve.EPILOG)
_add_command(methods.methods, methods.EPILOG)
_add_command(models.models, models.EPILOG)
