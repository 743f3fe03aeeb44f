"""The command `whence models`: list the embedded models, or tell what whence sees in a model."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from whence._util.progress import bar
from whence._util.text import to_printable
from whence.cli import options

if TYPE_CHECKING:
    from whence.models.description import ModelDescription

EPILOG = """[bold]Examples[/bold]

    whence models
    whence models pets
    whence models ./my-vit
    whence models timm:resnet18 --weights resnet18.safetensors --json"""

_OTHERS = """\
Any of these may be given as --model, or to `whence models`:
  pets, sentiment, stories       one of the above
  ./my-vit                       a folder that transformers saved to
  google/vit-base-patch16-224    a name on the hub of models
  timm:vit_tiny_patch16_224      a model of timm; --weights FILE if it is not on the hub
  torchvision:vit_b_16           a model of torchvision, with --weights FILE
whence models NAME tells what whence sees in one: classes, attention, methods that run."""
_MOST_CLASSES = 8


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model to look into, as --model of `whence explain` takes it."),
    ] = None,
    weights: options.Weights = None,
    device: options.Device = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all classes, and nothing else.")
    ] = False,
) -> None:
    """List the embedded models and how to name others, or look into one.

    Of one model it tells the input, the classes, the attention, and which methods run: one for each
    kind of evidence is tried on a sample.
    """
    if name is None:
        _print_embedded(as_json)
        return
    from whence.models import load
    from whence.models.description import describe_model, list_methods

    loaded = load(name, None, weights, device)
    with bar("Trying methods", len(list_methods(loaded.kind))) as advance:
        described = describe_model(loaded, advance)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(described), ensure_ascii=False, indent=2))
        return
    typer.echo("\n".join(map(to_printable, _describe(described))))


def _print_embedded(as_json: bool) -> None:
    from whence.models.folder import read_knowledge
    from whence.models.loaded import EMBEDDED, EMBEDDED_LANGUAGE_MODEL, list_embedded

    kinds = {folder: f"{kind}s" for kind, folder in EMBEDDED.items()}
    uses = kinds | {EMBEDDED_LANGUAGE_MODEL: "generated text"}
    rows = [
        {"name": name, "explains": uses[folder], "knows": read_knowledge(folder)}
        for name, folder in list_embedded().items()
    ]
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("embedded", "for", "knows"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row.values())
    console = options.open_console()
    console.print(table)
    console.print(_OTHERS)


def _describe(model: ModelDescription) -> list[str]:
    """The facts about a model, one a line or a paragraph."""
    facts = {
        "knows": model.knows,
        "input": model.input,
        "classes": _list_classes(model),
        "attention": _describe_attention(model),
        "parts": _describe_parts(model),
        "methods": ", ".join(model.methods),
    }
    head = f"{model.name}: {model.architecture} {model.task}, {_count(model.parameters)} parameters"
    lines = [head]
    for title, fact in facts.items():
        lines += _wrap(title, fact) if fact else []
    for problem, names in model.refused.items():
        lines += _wrap("not", f"{', '.join(names)}: {problem.removesuffix('.')}")
    return lines


def _wrap(title: str, fact: str) -> list[str]:
    return textwrap.wrap(
        fact,
        100,
        initial_indent=f"  {title:<11}",
        subsequent_indent=" " * 13,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _list_classes(model: ModelDescription) -> str:
    if not model.classes:
        what = "tokens" if model.task != "classifies photos" else "without names"
        return f"{model.class_count} {what}"
    names = list(model.classes.values())
    shown = "; ".join(names[:_MOST_CLASSES])
    more = "; … (--json lists all)"
    return f"{model.class_count}: {shown}{more if len(names) > _MOST_CLASSES else ''}"


def _describe_attention(model: ModelDescription) -> str:
    if not model.attention:
        return "none that could be seen"
    heads, queries, keys = (sorted(set(sizes)) for sizes in zip(*model.attention, strict=True))
    tokens = " or ".join(map(str, keys)) if queries == keys else f"{queries[0]} by {keys[0]}"
    each = " or ".join(map(str, heads))
    return f"{len(model.attention)} maps of {each} heads, of {tokens} tokens for the sample"


def _describe_parts(model: ModelDescription) -> str:
    if model.grid is None:
        return "tokens of the text, joined to words"
    grid = "x".join(map(str, model.grid))
    return f"{grid} patches" if model.attention else f"{grid} equal parts of the photo"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e5 else str(number)
