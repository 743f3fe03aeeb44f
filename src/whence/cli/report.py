"""The command `whence report`: explain many inputs and write one HTML page about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whence._util.defaults import METHOD
from whence._util.files import is_folder
from whence._util.notes import merge_notes
from whence._util.progress import bar
from whence._util.text import to_printable
from whence.cli import options, report_stored
from whence.errors import WhenceError

if TYPE_CHECKING:
    from whence.inputs.sources import Source

EPILOG = """[bold]Examples[/bold]

    whence report photos/ --out report.html
    whence report photos/ --model ./my-vit --top 2 --methods gae,rollout:start_layer=1
    whence report reviews.csv --target positive --title "Reviews of May"
    whence report photos/ --model openai/clip-vit-base-patch32 --text "a cat" --text "a dog"
    whence report results/ --limit 500
"""


def report(
    inputs: options.Inputs = None,
    text: options.Texts = None,
    as_text: options.InputsAreText = False,
    out: Annotated[Path, typer.Option(help="The page's file.")] = Path("report.html"),
    model: options.Model = None,
    weights: options.Weights = None,
    target: options.Targets = None,
    top: options.Top = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas, and options: "
            "gae,rollout:start_layer=1. See `whence methods`. If left out, that of `whence "
            "explain`."
        ),
    ] = None,
    rules: options.Rules = "stable",
    unjudged: Annotated[
        bool,
        typer.Option(
            "--no-faithfulness",
            help="Do not measure how faithful maps are, which takes up to 18 forward passes for "
            "each input, class and method.",
        ),
    ] = False,
    title: Annotated[
        str | None, typer.Option(help="The page's heading; after the inputs if left out.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Of a folder of results, how many inputs are shown, drawn at random; 200 if left "
            "out.",
        ),
    ] = None,
    device: options.Device = None,
    batch: options.Batch = 16,
    memory: options.Memory = None,
    compile: options.Compile = False,
    precision: options.Precision = None,
    quiet: options.Quiet = False,
    force: options.Force = False,
) -> None:
    """Make one page of many inputs, to look through and to send to someone.

    The page holds, for each photo or text, the classes with their probabilities, a map for each
    class and method, and how faithful the map is; it can be sorted and filtered, and needs nothing
    but itself. Of a folder of results, which `whence explain --format parquet` wrote, the stored
    scores are shown, and nothing is explained again. The exit code is 0 if everything was
    explained, 1 if inputs failed, 2 if the request itself was refused.
    """
    if out.suffix.lower() not in (".html", ".htm") and not is_folder(out):
        raise WhenceError(f"'{out}' must end in .html: the report is a page.")
    from whence.inputs.sources import expand  # late: it takes numpy and Pillow

    given, texts, as_text = options.read_texts(inputs, text, as_text)
    if not as_text and any(map(report_stored.is_result, given)):
        asked = {"--target": target, "--top": top, "--methods": methods, "--memory": memory}
        asked |= {"--compile": compile, "--precision": precision, "--rules": rules != "stable"}
        asked |= {"--text": bool(texts)}
        report_stored.check_request(given, [name for name, one in asked.items() if one])
        page = report_stored.Page(given[0], out, title, not unjudged, force, limit)
        report_stored.report(page, model, weights, device, quiet)
        return
    if limit is not None:
        raise WhenceError("--limit is for folders of results; of other inputs, all are shown.")
    sources = expand(given, as_text)
    # Imported late: torch takes a second, and a wrong input is refused without it.
    from whence.methods import parse_methods
    from whence.pipeline import ExplainSettings
    from whence.report.build import ReportRequest, build_report

    specifications, targets = tuple(parse_methods(methods or METHOD, rules)), tuple(target or ())
    settings = ExplainSettings(
        *(specifications, model, weights, device, targets, top, batch, memory, compile, precision),
        texts=texts,
    )
    heading = title if title is not None else _choose_title(given, sources)
    request = ReportRequest(settings, out, heading, not unjudged, force)
    with bar("Explaining", len(sources)) as advance:
        entries = build_report(request, sources, lambda _: advance(1))
    failed = [one for one in entries if one.error is not None]
    for one in failed:
        typer.echo(to_printable(f"{one.name}: {one.error}"), err=True)
    if not quiet:
        size = out.stat().st_size / 1e6
        done = len(entries) - len(failed)
        typer.echo(f"{done} of {len(entries)} inputs explained → {out} ({size:.2f} MB)")
        explained = [one.notes for one in entries if one.error is None]
        for note in merge_notes(explained, "input"):
            typer.echo(to_printable(f"  Note: {note}."))
    if failed:
        raise typer.Exit(1)


def _choose_title(inputs: list[str], sources: list[Source]) -> str:
    if len(inputs) == 1:
        return Path(inputs[0]).resolve().name if sources[0].path or sources[0].row else "One text"
    return f"{len(sources)} inputs"
