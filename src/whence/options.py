"""Options that several commands take, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Photos, text files (.txt), tables of texts (.csv, .tsv), folders of these, globs, "
        "text itself, or - for standard input.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="A folder that transformers saved to, a name on the hub, timm:NAME or "
        "torchvision:NAME. Without it, the embedded model that suits the input.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="A safetensors file, for timm:NAME and torchvision:NAME."),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(help="A class to explain, by name or index; may be repeated."),
]
Top = Annotated[
    int | None, typer.Option(min=1, help="Explain the K most probable classes.", metavar="K")
]
Rules = Annotated[
    str,
    typer.Option(help="How relevance passes operations: stable, reference, paper or authors_lrp."),
]
Device = Annotated[
    str | None, typer.Option(help="Such as cpu or cuda; the best there is if left out.")
]
Batch = Annotated[int, typer.Option(min=1, help="How many inputs go together.")]
Memory = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        help="Gibibytes to keep for the way back, or for methods of many passes; if left out, "
        "half of a GPU's free memory (for the way back at most 4), or 2 on a CPU.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Write over earlier results.")]
