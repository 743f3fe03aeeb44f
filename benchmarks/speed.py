"""The whole table of speed for a machine, from one run.

    python benchmarks/speed.py                                    # all that fits the machine
    python benchmarks/speed.py --only plain compiled --device cuda --json out/gpu.json
    python benchmarks/speed.py table out/gpu.json                 # its tables again
    python benchmarks/speed.py compare out/gpu.json               # variants of that run
    python benchmarks/speed.py picture out/speed.json --out docs/images/growth.png

Models have random weights, which cost as much as trained ones. Rows of a table take turns within
each round, so that a busy machine slows all of them: compare the ratios rather than the
milliseconds. Every figure has its spread over the rounds. Memory is the peak beyond model and
inputs, in the calls before the rounds, those that compile included: on a GPU of what torch's
allocator hands out, and of what the process holds; on a CPU of the resident set.

A run's figures are written to a JSON file with a random name of the run. Tables are made of one
such file, and figures of different runs are not compared.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from timing.models import LLAMA_SHAPES, SIZES
from timing.rounds import Group, WarmGroup
from timing.runs import Run, load_one_run, refuse
from timing.sections import SECTIONS, choose_sections
from timing.tables import format_comparison, format_run
from timing.workers import answer_requests


def measure(words: list[str]) -> None:
    """Measure sections, and print and keep their tables."""
    options = parse_options(words)
    if options.on_request:
        answer_requests(list_groups(options))
        return
    run = Run.start()
    path = options.json or Path("out") / f"speed-{run.run}.json"
    rounds = options.rounds or (3 if options.quick else 9)
    for group in list_groups(options):
        setting = ", ".join(f"{name} {value}" for name, value in group.setting.items())
        print(f"{group.title}{f' ({setting})' if setting else ''} …", file=sys.stderr, flush=True)
        run.rows += WarmGroup(group).measure(rounds, options.patience)
        run.save(path)
    print(format_run(run))
    print(f"The figures are in {path}.", file=sys.stderr)


def parse_options(words: list[str]) -> argparse.Namespace:
    """What to measure; most options are chosen by the device if they are not given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}"
    )
    parser.add_argument("--quick", action="store_true", help="tiny models, to try it in seconds")
    parser.add_argument("--device", help="default: cpu, then cuda where there is one")
    parser.add_argument("--rounds", type=int, help="default: 9, or 3 of a quick run")
    parser.add_argument(
        "--patience",
        type=float,
        default=5.0,
        help="what takes more seconds than this is measured once",
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help="rows, where a section has any"
    )
    parser.add_argument("--size", choices=SIZES, help="of the ViT: tiny on a CPU, base on a GPU")
    parser.add_argument(
        "--family",
        choices=("vit", "bert"),
        default="vit",
        help="of the sections plain and compiled",
    )
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--precision", choices=("tf32", "bfloat16"), help="of matrix products")
    parser.add_argument("--memory", type=float, help="gibibytes that an explanation may keep")
    parser.add_argument("--shape", choices=LLAMA_SHAPES, help="of the section llama")
    parser.add_argument("--tokens", type=int, default=4096, help="of that shape")
    parser.add_argument("--json", type=Path, help="default: out/speed-RUN.json")
    parser.add_argument("--on-request", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.device and options.device.startswith("cuda") and not torch.cuda.is_available():
        refuse("torch sees no GPU on this machine: leave --device out, or say --device cpu.")
    return options


def list_groups(options: argparse.Namespace) -> Iterator[Group]:
    """What is measured, on each device in turn."""
    found = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for name in [options.device] if options.device else found:
        device = torch.device(name)
        for section in choose_sections(options, device):
            yield from SECTIONS[section](options, device)


def print_tables(words: list[str]) -> None:
    """Print the tables of one file."""
    parser = argparse.ArgumentParser(prog="speed.py table", description=print_tables.__doc__)
    parser.add_argument("file", type=Path)
    print(format_run(Run.load(parser.parse_args(words).file)))


def compare(words: list[str]) -> None:
    """Print how variants that were measured in turns compare; files must be of one run."""
    parser = argparse.ArgumentParser(prog="speed.py compare", description=compare.__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    run = load_one_run(parser.parse_args(words).files)
    print(f"{run.describe()}\n\n{format_comparison(run.rows)}")


def draw(words: list[str]) -> None:
    """Draw how cost grows, from the section growth of one run."""
    parser = argparse.ArgumentParser(prog="speed.py picture", description=draw.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images/growth.png"))
    options = parser.parse_args(words)
    from timing.pictures import draw_growth  # matplotlib is not on every machine that measures

    draw_growth(Run.load(options.file), options.out)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "table": print_tables,
    "compare": compare,
    "picture": draw,
}


def main(words: list[str]) -> None:
    command = COMMANDS.get(words[0]) if words else None
    if command is None:
        measure(words)
    else:
        command(words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
