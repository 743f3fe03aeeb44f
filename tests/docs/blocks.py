"""Read the code blocks of a page, and run them as a reader would."""

import re
import shlex
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

import click
from typer.main import get_command
from typer.testing import CliRunner

from whence.cli.app import app

FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parents[2]
PYTHON = "python"
COMMANDS = ("bash", "console")
# What shows output or formulas is not run; a block without a language is an error of the page.
SHOWN = ("text", "math", "json")
# Programs that set up an installation, or that ask a server which runs: their lines are not run.
NOT_RUN = ("pip", "make", "git", "curl", "cd", "gh", "sha256sum", "tar")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page it begins on."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A command line as words, and what the page shows as its output."""

    words: list[str]
    shown: str = ""


def read_blocks(page: Path) -> list[Block]:
    """Read the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in FENCE.finditer(text):
        indent = len(match[1])
        body = "".join(line[indent:] for line in match[3].splitlines(keepends=True))
        blocks.append(Block(match[2].strip(), body, text.count("\n", 0, match.start()) + 2))
    return blocks


def run_python(block: Block, page: str, names: dict[str, Any]) -> None:
    """Run Python in the page's namespace; an error names the line of the page."""
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, page, "exec"), names)


def list_commands(block: Block) -> list[Command]:
    """List the commands of a block: in a console block the lines after a dollar sign.

    Variables that are set before a command, or on a line of their own, are left out.
    """
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        parts = [part.partition("\n") for part in f"\n{text}".split("\n$ ")[1:]]
        lines = [(line, shown) for line, _, shown in parts]
    else:
        lines = [(line, "") for line in text.splitlines()]
    commands = []
    for line, shown in lines:
        words = shlex.split(line, comments=True)
        words = list(dropwhile(re.compile(r"[A-Z_]+=").match, words))
        commands += [Command(words, shown)] if words else []
    return commands


def run_command(command: Command) -> None:
    """Run a `whence` command; one that is shown with an error has to fail with it.

    Of commands that do not end (`serve`), or that read data which the shell knows by a variable
    such as $WHENCE_DATA, the options are read and the rest is not run. Of scripts, which measure or
    train for minutes, it is checked that they are there.
    """
    words = command.words
    if words[0] in NOT_RUN:
        return
    if words[0] == "python":
        named = words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1]
        assert (ROOT / named).is_file(), named
        return
    assert words[0] == "whence", f"{words[0]} is neither whence nor one of {NOT_RUN}"
    if "serve" in words[1:2] or any("$" in word for word in words):
        read_options(words[1:])
        return
    result = CliRunner().invoke(app, words[1:])
    if command.shown.startswith("Error:"):
        expected = " ".join(command.shown.partition("…")[0].split())
        assert result.exit_code == 2
        assert expected in " ".join(result.output.split()), result.output
        return
    error = repr(result.exception) if result.exception else ""
    assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}{error}"


def read_options(words: list[str]) -> None:
    """Read the options of a command, which raises if it does not have them."""
    command = get_command(app)
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


def run_page(page: Path) -> int:
    """Run all blocks of a page in order, in one namespace; return how many."""
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    for block in read_blocks(page):
        if block.language == PYTHON:
            run_python(block, str(page), names)
        elif block.language in COMMANDS:
            for command in list_commands(block):
                run_command(command)
        else:
            assert block.language in SHOWN, f"{page}:{block.line}: a block of '{block.language}'"
            continue
        ran += 1
    return ran
