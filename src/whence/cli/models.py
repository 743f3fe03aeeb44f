"""The command `whence models`: list the embedded models, or tell what whence sees in a model."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from whence._util.progress import bar
from whence._util.text import to_printable
from whence.cli import options
from whence.cli.tried import print_family, print_tasks, wrap
from whence.errors import WhenceError

if TYPE_CHECKING:
    from pathlib import Path

    from whence.models.description import ModelDescription
    from whence.models.processed import ProcessedDescription

EPILOG = """[bold]Examples[/bold]

    whence models
    whence models --family swin
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
whence models NAME tells what whence sees in one: classes, attention, methods that run.
whence models --family swin tells what was found for a family in the table above."""
_MOST_CLASSES = 8


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model to look into, as --model of `whence explain` takes it."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--family", help="Tell which methods ran on small models of this family."),
    ] = None,
    weights: options.Weights = None,
    device: options.Device = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with all classes, and nothing else.")
    ] = False,
) -> None:
    """List embedded models and those that methods were tried on, or look into one.

    Of one model it tells the input, the classes, the attention, and which methods run: they are
    tried on a sample.
    """
    if name is not None and family is not None:
        raise WhenceError("Give a model or --family, not both.")
    if family is not None:
        print_family(family, as_json)
        return
    if name is None:
        _print_embedded(as_json)
        return
    described = _look_into(name, weights, device)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(described), ensure_ascii=False, indent=2))
        return
    from whence.models.description import ModelDescription

    if isinstance(described, ModelDescription):
        lines = _describe(described)
    else:
        lines = _describe_inputs(described)
    typer.echo("\n".join(map(to_printable, lines)))


def _look_into(
    name: str, weights: Path | None, device: str | None
) -> ModelDescription | ProcessedDescription:
    """Describe a model that whence loads, or any other one of transformers by its processor."""
    from whence.models import load
    from whence.models.description import describe_model, list_methods
    from whence.models.processed import NoSampleError, describe_processed

    try:
        loaded = load(name, None, weights, device)
    except WhenceError as error:
        if weights is not None:
            raise
        try:
            return describe_processed(name)
        except NoSampleError:
            raise
        except WhenceError:
            raise error from None
    with bar("Trying methods", len(list_methods(loaded.kind))) as advance:
        return describe_model(loaded, advance)


def _print_embedded(as_json: bool) -> None:
    from whence.models.folder import (
        EMBEDDED,
        EMBEDDED_LANGUAGE_MODEL,
        list_embedded,
        read_knowledge,
    )
    from whence.models.tried import read_tried_models

    kinds = {folder: f"{kind}s" for kind, folder in EMBEDDED.items()}
    uses = kinds | {EMBEDDED_LANGUAGE_MODEL: "generated text"}
    rows = [
        {"name": name, "explains": uses[folder], "knows": read_knowledge(folder)}
        for name, folder in list_embedded().items()
    ]
    if as_json:
        tried = [dataclasses.asdict(one) for one in read_tried_models().models]
        typer.echo(json.dumps({"embedded": rows, "tried": tried}, ensure_ascii=False, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("embedded", "for", "knows"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row.values())
    console = options.open_console()
    console.print(table)
    print_tasks(console)
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
        lines += wrap(title, fact) if fact else []
    for problem, names in model.refused.items():
        lines += wrap("not", f"{', '.join(names)}: {problem.removesuffix('.')}")
    return lines


def _describe_inputs(model: ProcessedDescription) -> list[str]:
    """The facts about a model that only Python code explains: for each input, what runs."""
    lines = [f"{model.name}: {model.architecture}, {_count(model.parameters)} parameters"]
    shapes = ("x".join(map(str, shape)) for shape in model.inputs.values())
    facts = (f"{name} {shape}" for name, shape in zip(model.inputs, shapes, strict=True))
    lines += wrap("inputs", f"of a sample: {', '.join(facts)}")
    for of, names in model.methods.items():
        lines += ["", f"  scores of {of}", *wrap("methods", ", ".join(names) or "none")]
        for problem, refused in model.refused[of].items():
            lines += wrap("not", f"{', '.join(refused)}: {problem.removesuffix('.')}")
    return [*lines, "", *wrap("in Python", model.python)]


def _list_classes(model: ModelDescription) -> str:
    if model.task.startswith("compares"):
        return "the texts that are named: --text TEXT, for each"
    if not model.classes:
        what = "tokens" if model.kind == "text" else "without names"
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
    if model.grid is None and model.kind == "text":
        return "tokens of the text, joined to words"
    if model.grid is None:
        return f"{model.units} tokens, of which it is not proven that they lie in a grid"
    grid = "x".join(map(str, model.grid))
    if model.kind == "audio":
        return f"{grid} parts of the sound"
    return f"{grid} patches" if model.attention else f"{grid} equal parts of the {model.kind}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e5 else str(number)
