"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from whence._util.files import FIGURES, is_file, is_folder
from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.distributed.ray_cluster import RayOptions

# Panels of --help, below the options that most people need.
TARGET_PANEL = "More on the model and the target"
METHOD_PANEL = "More on the method"
SPEED_PANEL = "Speed and memory"
RAY_PANEL = "Many machines"
# Columns of a table that goes to a file or another program.
_PIPE_WIDTH = 200


def open_console() -> Console:
    """Open a console for plain text and tables, which are wide where there is no terminal."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def complete_method(incomplete: str) -> list[str]:
    """List the methods whose names begin so, for completion in a shell."""
    from whence.methods import registry

    return [name for name in registry.available() if name.startswith(incomplete)]


Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        help="Photos, text files (.txt), tables of texts (.csv, .tsv), folders of these, globs, "
        "text itself, or - for standard input.",
    ),
]
ManyInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        help="Photos, text files (.txt), tables of texts (.csv, .tsv), folders of these, globs, "
        "text itself, or - for standard input. To rows of Parquet also tables of photos or texts "
        "(.parquet, .jsonl, .tar, .lance) and addresses (s3://…).",
    ),
]
AsText = Annotated[
    bool,
    typer.Option(
        "--text",
        help="Take the inputs as text, even one word, - or what looks like a path.",
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="TEXT",
        help="A text to compare photos or sentences with, for models that do so, such as CLIP; may "
        "be repeated. Without an INPUT, it is itself the input; without a TEXT, the inputs are "
        "texts, even one word, - or what looks like a path.",
    ),
]
# What --text without a TEXT stands for; see the command's class in app.py.
ALL_TEXT = "--inputs-are-text"
InputsAreText = Annotated[bool, typer.Option(ALL_TEXT, hidden=True)]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A folder that transformers saved to, a name on the hub, timm:NAME or "
        "torchvision:NAME; see `whence models`. Without it, the embedded model that suits the "
        "input.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=TARGET_PANEL,
        help="A safetensors file, for timm:NAME and torchvision:NAME.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS",
        help="A class to explain, by name or index, or the next token of a language model, by text "
        "or id; may be repeated.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="Explain why the target and not this class or token: the difference of the two.",
    ),
]
Position = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=TARGET_PANEL,
        help="Explain the output at this token, in a model with an output for each; counted from "
        "0, or from the end if negative.",
    ),
]
Box = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        rich_help_panel=TARGET_PANEL,
        help="Explain box N of a detection model, counted from 0; without it, the most confident "
        "one, of the target if one is named.",
    ),
]
Pixel = Annotated[
    str | None,
    typer.Option(
        metavar="ROW,COLUMN",
        rich_help_panel=TARGET_PANEL,
        help="Explain one place of a segmentation or depth model: row and column of its own grid, "
        "or shares such as 0.5,0.25. Without it, all places that the model gives to the target.",
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Explain the K most probable classes, or the K most confident boxes.",
        metavar="K",
    ),
]
Rules = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=METHOD_PANEL,
        help="How relevance passes operations, for methods that propagate it: stable, reference, "
        "paper or authors_lrp.",
    ),
]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        rich_help_panel=METHOD_PANEL,
        help="An option of the method, see `whence methods NAME`; may be repeated.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=SPEED_PANEL,
        help="Such as cpu or cuda; the best there is if left out.",
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", rich_help_panel=SPEED_PANEL, help="How many inputs go together."
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        rich_help_panel=SPEED_PANEL,
        help="Gibibytes to keep for the backward pass, or for methods of many passes; if left out, "
        "half of a GPU's free memory (for the backward pass at most 4), or 2 on a CPU.",
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        rich_help_panel=SPEED_PANEL,
        help="Compile explanations of batches of one shape: the first takes seconds more, for each "
        "method, and those after it are faster, most of all on a GPU. After ten seconds of them, "
        "torch's compiler makes them faster still, which takes it up to a minute (on a CPU, a C++ "
        "compiler is needed). It pays for hundreds of photos, or texts of the model's full length.",
    ),
]
Precision = Annotated[
    Literal["tf32", "bfloat16"] | None,
    typer.Option(
        "--precision",
        rich_help_panel=SPEED_PANEL,
        help="Compute matrix products in tf32 (on a GPU) or bfloat16: faster where the hardware "
        "has them, and coarser: scores of tiba are off by about 0.2 % and 2 %. If left out, in "
        "the type of the weights.",
    ),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        rich_help_panel=RAY_PANEL,
        help="Share the work among processes by Ray, on this machine or a cluster; pip install "
        "'whence\\[ray]'.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        rich_help_panel=RAY_PANEL,
        help="The head node of a Ray cluster, or auto on one of its nodes; if left out, the "
        "processes run here.",
    ),
]
Actors = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=RAY_PANEL,
        help="How many processes, each with its own model; one for each GPU or CPU if left out.",
    ),
]
CpusPerActor = Annotated[
    float, typer.Option(metavar="X", rich_help_panel=RAY_PANEL, help="CPUs of each process.")
]
GpusPerActor = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        rich_help_panel=RAY_PANEL,
        help="GPUs of each process, such as 0.5 for two on one; 1 if left out, or 0 where there "
        "are none.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
Force = Annotated[bool, typer.Option("--force", help="Write over earlier results.")]

_FILES = {*FIGURES, ".html", ".json", ".csv", ".npz", ".safetensors", ".pdf"}


def check_folder(out: Path) -> None:
    """Refuse a folder for results that is named as a file is, and is not there yet."""
    if out.suffix.lower() in _FILES and not (is_file(out) or is_folder(out)):
        raise WhenceError(f"--out names a folder, and '{out}' looks like a file.")


def read_texts(
    inputs: list[str] | None, texts: list[str] | None, as_text: bool
) -> tuple[list[str], tuple[str, ...] | None, bool]:
    """Tell inputs from texts that they are compared with: texts without inputs are the inputs.

    Returns:
        The inputs, the texts, and whether all inputs are texts.
    """
    if not inputs and texts:
        return texts, None, True
    return inputs or [], None if texts is None else tuple(texts), as_text


def read_ray_options(
    ray: bool,
    address: str | None,
    actors: int | None,
    cpus_per_actor: float,
    gpus_per_actor: float | None,
) -> RayOptions | None:
    """Read the options of a run with Ray; None without --ray, which all of them need."""
    if not ray:
        given = {"--address": address, "--actors": actors, "--gpus-per-actor": gpus_per_actor}
        named = [name for name, value in given.items() if value is not None]
        if cpus_per_actor != 1:
            named.append("--cpus-per-actor")
        if named:
            raise WhenceError(f"{named[0]} is for runs with Ray: give --ray too.")
        return None
    from whence.distributed.ray_cluster import RayOptions

    return RayOptions(address, actors, cpus_per_actor, gpus_per_actor)
