"""Run `whence explain` in a test."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from whence.cli.app import app


def run_explain(*arguments: object, code: int = 0, stdin: bytes | str | None = None) -> Any:
    """Run the command, and check its exit code."""
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result


def read_summary(*arguments: object, **options: object) -> list[dict]:
    """Run the command; return the entries of the summary, which is all that --json prints."""
    return json.loads(run_explain(*arguments, "--json", **options).stdout)["inputs"]


def list_files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())
