"""The command `whence generate`: generate text, and show what each word came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from whence._util.defaults import METHOD
from whence._util.progress import bar
from whence._util.text import to_printable
from whence.cli import options

EPILOG = """[bold]Examples[/bold]

    whence generate "Once upon a time, there was a girl named Lily. She"
    whence generate prompt.txt --model ./my-llama --tokens 60 --by sentence
    whence generate "Who has the ball?" --model ./my-chat-model --chat
    whence generate prompt.txt --spans passages.json
    whence generate "The cat sat on the" --against floor --position 0
    whence generate "What is on the blanket?" --image cat.jpg --model ./my-llava"""


def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help="The prompt itself, a text file, or - for standard input."
        ),
    ],
    text: options.AsText = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A causal language model: a folder that transformers saved to, or a name on the "
            "hub. Without it, the embedded one.",
        ),
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="An image that comes before the prompt, for a model that reads images; again for "
            "each further one.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="How many tokens to generate at most.")
    ] = 20,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How to explain; see `whence methods`.",
            autocompletion=options.complete_method,
        ),
    ] = METHOD,
    option: options.MethodOptions = None,
    rules: options.Rules = "stable",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Explain why each token was generated, and not this one.",
        ),
    ] = None,
    by: Annotated[
        Literal["token", "word", "sentence"],
        typer.Option(help="What gets one score: tokens, words or sentences."),
    ] = "word",
    spans: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Passages of the prompt that get one score each, in a JSON file: "
            '{"name": "text of the passage", "other": \\[first, last + 1]}, or a list.',
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Print the whole text in colours of what this generated word came from; counted "
            "from 0.",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Give the prompt as the user's turn of a chat to the model."),
    ] = False,
    device: options.Device = None,
    memory: options.Memory = None,
    precision: options.Precision = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results go.")] = Path(
        "whence-out"
    ),
    image_format: Annotated[
        Literal["png", "jpg", "svg"], typer.Option("--format", help="The format of the figure.")
    ] = "png",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the scores as JSON, and nothing else.")
    ] = False,
    quiet: options.Quiet = False,
    force: options.Force = False,
) -> None:
    """Generate text with a language model, and show what each generated word came from.

    The folder of results gets a page in which you point at a word, a figure, the scores as JSON and
    as a table, and everything as a safetensors file.
    """
    options.check_folder(out)
    # Imported late: torch takes a second.
    from whence.methods import MethodSpecification, parse_options
    from whence.pipeline import (
        GenerateSettings,
        OutputSettings,
        generate_after_images,
        generate_to_files,
        read_passages,
        read_prompt,
    )
    from whence.render.display import show_generation
    from whence.render.files import format_json
    from whence.render.sentences import name_model

    source = read_prompt(prompt, text)
    chosen = parse_options(method, option) if option else {}
    settings = GenerateSettings(
        MethodSpecification(method, method, chosen, rules),
        model,
        device,
        tokens,
        against,
        by if spans is None else read_passages(spans),
        chat,
        memory,
        precision,
    )
    output = OutputSettings(out, image_format, force)
    with bar("Generating", tokens) as advance:
        if image:
            result = generate_after_images(settings, output, source, image, advance)
        else:
            result = generate_to_files(settings, output, source, advance)
    if as_json:
        typer.echo(format_json(result.generation, settings.by), nl=False)
    if as_json or quiet:
        return
    console = Console(highlight=False, emoji=False, markup=False)
    if position is None:
        shown = "\n".join(map(to_printable, result.generation.output().strip().split("\n")))
        console.print(Text(shown, "italic"), end="\n\n")
    show_generation(result.generation, settings.by, position, console, notes=False)
    files = ", ".join(path.name for path in result.files.values())
    console.print(Text(to_printable(f"→ {out}: {files}")), soft_wrap=True)
    model_line = name_model(result.generation)
    console.print(Text(to_printable(model_line)), soft_wrap=True)
    for note in result.notes:
        console.print(Text(to_printable(f"  Note: {note}.")), soft_wrap=True)
