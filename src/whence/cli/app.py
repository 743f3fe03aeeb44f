"""The command line: parses, calls, prints. Nothing here imports torch before it must."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from whence._util.defaults import METHOD
from whence._util.progress import bar
from whence.cli import options
from whence.cli.benchmark import EPILOG as BENCHMARKS
from whence.cli.benchmark import benchmark
from whence.cli.errors import sentences
from whence.cli.report import EPILOG as REPORTS
from whence.cli.report import report
from whence.cli.serve import EPILOG as SERVING
from whence.cli.serve import serve
from whence.errors import WhenceError
from whence.inputs.sources import expand
from whence.version import __version__

if TYPE_CHECKING:
    from whence.pipeline import Result

app = typer.Typer(
    name="whence",
    help="From which parts of its input did a Transformer's decision come?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# Below this many inputs a bar would be gone before it is read.
_A_FEW = 4


class Format(StrEnum):
    """What figures are saved as."""

    png = "png"
    svg = "svg"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whence {__version__}")
        raise typer.Exit


def _noted(message: Warning | str, category: type[Warning], *_: Any, **_where: Any) -> None:
    """A warning as a sentence, without the line of code that gave it."""
    if category is UserWarning:
        typer.echo(f"Note: {str(message).removeprefix('Note: ')}", err=True)


@app.callback()
def _main(
    _version_only: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    # A terminal that cannot show a letter shows a question mark, and the work goes on.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _noted


def _method_names(incomplete: str) -> list[str]:
    from whence import methods

    return [name for name in methods.available() if name.startswith(incomplete)]


@app.command(
    epilog="""[bold]Examples[/bold]

    whence explain cat.jpg
    whence explain "A wonderful film, and far too short."
    whence explain photos/ --model ./my-vit --top 3
    whence explain photos/*.jpg --model timm:vit_tiny_patch16_224 --weights vit.safetensors
    cat review.txt | whence explain - --target negative --json"""
)
def explain(
    inputs: options.Inputs,
    model: options.Model = None,
    weights: options.Weights = None,
    target: options.Targets = None,
    top: options.Top = None,
    method: Annotated[
        str, typer.Option(help="See `whence methods`.", autocompletion=_method_names)
    ] = METHOD,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the method, see `whence methods NAME`; may be repeated.",
        ),
    ] = None,
    rules: options.Rules = "stable",
    start_layer: Annotated[
        int | None, typer.Option(help="The first layer that takes part, counted from 0.")
    ] = None,
    device: options.Device = None,
    batch: options.Batch = 16,
    memory: options.Memory = None,
    fast: options.Fast = False,
    precision: options.InPrecision = None,
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("whence-out"),
    image_format: Annotated[Format, typer.Option("--format", help="Of figures.")] = Format.png,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what failed.")] = False,
    force: options.Force = False,
) -> None:
    """Show where in a photo or a text a model's decision came from.

    For each input, the folder of results gets a picture (or a page for text) and the explanation as
    a safetensors file, and a summary.json tells of them all. The exit code is 0 if everything was
    explained, 1 if some inputs failed, 2 if the request could not be met.
    """
    with sentences():
        sources = expand(inputs)
        # Imported only now: torch takes a second, and wrong names are told without it.
        from whence import pipeline as bulk
        from whence.methods.specification import Chosen
        from whence.pipeline.summary import as_json as to_json

        how = bulk.How(
            methods=(Chosen(method, method, _options(method, option or [], start_layer), rules),),
            model=model,
            weights=weights,
            device=device,
            targets=tuple(target or ()),
            top=top,
            batch=batch,
            memory=memory,
            fast=fast,
            precision=precision and precision.value,
        )
        request = bulk.Request(how, out, image_format.value, force)
        console = Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
        silent = quiet or as_json
        with _reporter(len(sources), quiet) as later:
            summary = bulk.run(
                request, sources, lambda r: later(lambda: _tell(r, console, silent, out))
            )
        if as_json:
            typer.echo(to_json(summary))
    if any(entry["error"] for entry in summary["inputs"]):
        raise typer.Exit(1)


def _options(method: str, given: list[str], start_layer: int | None) -> dict[str, Any]:
    from whence import methods as registry

    options: dict[str, Any] = {} if start_layer is None else {"start_layer": start_layer}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise WhenceError(f"An option is given as NAME=VALUE, not '{one}'.")
        options[name] = registry.parse(method, name, value)
    return options


app.command(epilog=BENCHMARKS)(benchmark)
app.command(epilog=REPORTS)(report)
app.command(epilog=SERVING)(serve)


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method to describe.", autocompletion=_method_names),
    ] = None,
) -> None:
    """List the methods of explanation, or describe one of them with its options."""
    from rich import box
    from rich.table import Table

    from whence import methods as registry

    with sentences():
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
        console = Console(highlight=False, markup=False)
        if not console.is_terminal:
            console.width = 200
        console.print(table)
        console.print("whence methods NAME tells of one: its paper, cost and options.")
        console.print(f"The default is {METHOD}.")


def _many_in_a_terminal(count: int) -> bool:
    return count >= _A_FEW and sys.stderr.isatty()


@contextmanager
def _reporter(count: int, quiet: bool) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Tells at once, or shows progress first and tells when all is done."""
    if quiet or not _many_in_a_terminal(count):
        yield lambda tell: tell()
        return
    waiting: list[Callable[[], None]] = []
    try:
        with bar("Explaining", count) as advance:

            def later(tell: Callable[[], None]) -> None:
                waiting.append(tell)
                advance(1)

            yield later
    finally:  # also when interrupted: what was done is told
        for tell in waiting:
            tell()


def _printable(text: str) -> str:
    from whence._util.text import to_printable

    return to_printable(text)


def _tell(result: Result, console: Console, silent: bool, out: Path) -> None:
    entry: dict[str, Any] = result.entry
    if entry["error"]:
        typer.echo(_printable(f"{entry['input']}: {entry['error']}"), err=True)
        return
    if silent:
        return
    shown = out / (entry["files"].get("figure") or entry["files"]["page"])
    if result.explanation is not None and entry["kind"] == "text":
        from whence.render import format_terminal_text

        for at, one in enumerate(entry["classes"]):
            if len(entry["classes"]) > 1:
                console.print(f"For {one['name']}:")
            console.print(format_terminal_text(result.explanation, target=at))
        console.print(_printable(f"{entry['sentence']} → {shown}"))
    else:
        console.print(_printable(f"{entry['input']}: {entry['sentence']} → {shown}"))
    for note in entry["notes"]:
        console.print(f"  Note: {note}.")
