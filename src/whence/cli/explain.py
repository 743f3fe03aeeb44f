"""The command `whence explain`: explain photos and texts, and write the results to a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from whence._util.defaults import METHOD
from whence._util.notes import merge_notes
from whence._util.progress import bar
from whence._util.text import to_printable
from whence.cli import explain_many as many
from whence.cli import options
from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.explanation import Explanation
    from whence.inputs.sources import Kind, Source
    from whence.pipeline import InputResult
    from whence.pipeline.entries import SummaryEntry

EPILOG = """[bold]Examples[/bold]

    whence explain cat.jpg
    whence explain "A wonderful film, and far too short."
    whence explain photos/ --model ./my-vit --top 3
    whence explain cat.jpg --model ./my-vit --target tabby --against "Egyptian cat"
    whence explain street.jpg --model ./my-detr --target car
    whence explain cat.jpg --model openai/clip-vit-base-patch32 --text "a cat" --text "a dog"
    whence explain photos/*.jpg --model timm:vit_tiny_patch16_224 --weights vit.safetensors
    cat review.txt | whence explain - --target negative --json
    whence explain clip.wav --model ./my-ast
    whence explain clip.gif frames/ --model ./my-videomae
    whence explain photos/ --format parquet --out results"""

_MAYBE_VIDEOS = {".gif", ".webp", ".png", ".apng"}
_NOUNS = {"image": "photo", "text": "text", "video": "video", "audio": "sound"}
# With fewer inputs, a progress bar would be gone before it is read.
_MANY = 4


def explain(
    inputs: options.ManyInputs = None,
    text: options.Texts = None,
    as_text: options.InputsAreText = False,
    model: options.Model = None,
    weights: options.Weights = None,
    target: options.Targets = None,
    against: options.Against = None,
    position: options.Position = None,
    box: options.Box = None,
    pixel: options.Pixel = None,
    top: options.Top = None,
    of: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=options.TARGET_PANEL,
            help="Which of the model's inputs gets scores, such as input_ids; its main one if left "
            "out.",
        ),
    ] = None,
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
    start_layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            rich_help_panel=options.METHOD_PANEL,
            help="The first layer that takes part, counted from 0.",
        ),
    ] = None,
    device: options.Device = None,
    batch: options.Batch = 16,
    memory: options.Memory = None,
    compile: options.Compile = False,
    precision: options.Precision = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            rich_help_panel=options.METHOD_PANEL,
            help="Measure all checks of a result, also those that take time.",
        ),
    ] = False,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where results go.")] = "whence-out",
    format: Annotated[
        Literal["png", "jpg", "svg", "html", "parquet"] | None,
        typer.Option(
            help="png (the default), jpg or svg: a figure for each photo, a page for each text; "
            "jpg is the fastest, for folders of photos. html: a page for each. "
            "parquet: a row for each input, for thousands and millions; a run that ended goes on "
            "with the same command.",
            show_default=False,
        ),
    ] = None,
    outlines: Annotated[
        bool,
        typer.Option(
            "--outlines", help="Outline the regions of photos that hold much of the evidence."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
    quiet: options.Quiet = False,
    force: options.Force = False,
    id: many.IdColumn = None,
    column: many.Column = None,
    scores: many.Scores = "float32",
    part_rows: many.PartRows = many.PART_ROWS,
    threads: many.Threads = None,
    retry: many.Retry = False,
    ray: options.Ray = False,
    address: options.Address = None,
    actors: options.Actors = None,
    cpus_per_actor: options.CpusPerActor = 1.0,
    gpus_per_actor: options.GpusPerActor = None,
) -> None:
    """Show which parts of a photo, a text, a video or a sound a model's decision came from.

    For each input, the folder of results gets a picture (or a page for text) and the explanation as
    a safetensors file; summary.json lists them all. With --format parquet, and for tables of
    photos or texts, it gets a row of Parquet instead. The exit code is 0 if everything was
    explained, 1 if inputs failed, 2 if the request itself was refused.
    """
    folder = Path(out)
    options.check_folder(folder)
    given, texts, as_text = options.read_texts(inputs, text, as_text)
    cluster = options.read_ray_options(ray, address, actors, cpus_per_actor, gpus_per_actor)
    rows = many.RowOptions(id, column, scores, part_rows, threads)
    is_many = cluster is not None or format == "parquet" or many.is_for_many(given)
    how = many.RunOptions(force, retry, quiet, as_json)
    many.check_options(rows, how, is_many, format, as_text, outlines)
    sources: list[Source] = []
    if not is_many:
        from whence.inputs.sources import expand  # late: it takes numpy and Pillow

        sources = expand(given, as_text, _find_kind(given, model))
        if outlines and all(source.kind == "text" for source in sources):
            raise WhenceError("--outlines is for photos, and the inputs are texts.")
    # Imported late: torch takes a second, and a wrong input is refused without it.
    from whence.methods import MethodSpecification, parse_options
    from whence.pipeline import ExplainSettings, OutputSettings, explain_to_files, format_summary

    chosen = parse_options(method, option) if option else {}
    if start_layer is not None:
        chosen = {"start_layer": start_layer, **chosen}
    specification, targets = MethodSpecification(method, method, chosen, rules), tuple(target or ())
    settings = ExplainSettings(
        (specification,),
        model,
        weights,
        device,
        targets,
        top,
        batch,
        memory,
        compile,
        precision,
        verify,
        of,
        against,
        position,
        box=box,
        pixel=pixel,
        texts=texts,
    )
    if is_many:
        many.explain_many(given, rows.make_settings(settings), out, cluster, how)
        return
    output = OutputSettings(folder, format or "png", force, outlines)
    printer = _Printer(folder, len(sources) == 1, only_errors=quiet or as_json)
    with closing(explain_to_files(settings, output, sources)) as results:
        if not quiet and _is_many_in_terminal(len(sources)):
            entries = printer.print_after_progress(results, len(sources))
        else:
            entries = printer.print_at_once(results)
    ordered = [entries[index] for index in sorted(entries)]
    printer.print_notes(ordered)
    printer.print_models()
    if as_json:
        typer.echo(format_summary(folder, ordered))
    if any(entry["error"] for entry in ordered):
        raise typer.Exit(1)


def _find_kind(inputs: Sequence[str], model: str | None) -> Kind | None:
    """Tell if the model is one of videos, and an input may be one; the model is not loaded."""
    suffixes = {os.path.splitext(one)[1].lower() for one in inputs}
    if model is None or not (suffixes & _MAYBE_VIDEOS or any(map(os.path.isdir, inputs))):
        return None
    from whence.models.wrapping import reads_videos  # late: it takes torch

    return "video" if reads_videos(model) else None


def _is_many_in_terminal(count: int) -> bool:
    return count >= _MANY and sys.stderr.isatty()


class _Printer:
    """Print the results in a folder to the terminal, or only the inputs that failed."""

    def __init__(self, out: Path, is_one: bool, only_errors: bool) -> None:
        self._out = out
        self._is_one = is_one
        self._only_errors = only_errors
        self._console = Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
        self._models: list[str] = []

    def print_at_once(self, results: Iterator[InputResult]) -> dict[int, SummaryEntry]:
        """Print each result as it comes; return the entries by the inputs' indices."""
        entries = {}
        for result in results:
            entries[result.index] = result.entry
            self._print(result)
        return entries

    def print_after_progress(
        self, results: Iterator[InputResult], count: int
    ) -> dict[int, SummaryEntry]:
        """Show a progress bar, and print the results when it ends, also when interrupted."""
        finished: list[InputResult] = []
        try:
            with bar("Explaining", count) as advance:
                for result in results:
                    finished.append(result)
                    advance(1)
        finally:
            entries = self.print_at_once(iter(finished))
        return entries

    def print_models(self) -> None:
        """Name the models whose results were printed, and say what they know."""
        for line in dict.fromkeys(self._models):
            self._console.print(to_printable(line))

    def _print(self, result: InputResult) -> None:
        entry = result.entry
        if entry["error"]:
            typer.echo(to_printable(f"{entry['input']}: {entry['error']}"), err=True)
            return
        if self._only_errors:
            return
        if result.explanation is not None:
            from whence.render.sentences import name_model

            self._models.append(name_model(result.explanation))
        file = self._out / (entry["files"].get("figure") or entry["files"]["page"])
        moving = entry["files"].get("animation")
        decision = f"{entry['sentence']} → {file}" + (f", {self._out / moving}" if moving else "")
        if result.explanation is not None and entry["kind"] == "text":
            from whence.render.terminal import format_compared, format_terminal_text

            for number, one in enumerate(entry["classes"]):
                if len(entry["classes"]) > 1:
                    self._console.print(to_printable(f"For {one['name'].strip()}:"))
                self._console.print(format_terminal_text(result.explanation, target=number))
                if words := format_compared(result.explanation, target=number):
                    self._console.print(words)
            self._console.print(to_printable(decision))
        else:
            self._console.print(to_printable(f"{entry['input']}: {decision}"))
        if result.explanation is not None and "texts" in entry:
            self._print_texts(result.explanation)
        if self._is_one:
            self._print_notes(entry["notes"])

    def _print_texts(self, explanation: Explanation) -> None:
        """Print how well texts fit an input, and the coloured words of those explained."""
        from whence.render.compared import format_fits
        from whence.render.terminal import format_compared

        if fits := format_fits(explanation):
            self._console.print(to_printable(f"  {fits}"))
        for number in range(len(explanation.classes())):
            words = format_compared(explanation, target=number)
            if explanation.grid is not None and words:
                self._console.print("  ", words, sep="")

    def print_notes(self, entries: Sequence[SummaryEntry]) -> None:
        """Print the notes of several inputs, once each with the number of inputs."""
        explained = [entry for entry in entries if not entry["error"]]
        if self._is_one or self._only_errors:
            return
        kinds = {entry["kind"] for entry in explained}
        noun = "input" if len(kinds) > 1 else _NOUNS[next(iter(kinds), "text")]
        self._print_notes(merge_notes([entry["notes"] for entry in explained], noun))

    def _print_notes(self, notes: Sequence[str]) -> None:
        for note in notes:
            self._console.print(f"  Note: {note}.")
