"""List what is public: names, options of commands and of methods. See docs/policy.md.

A release keeps its list, tests/golden/public-0.2.json, and the tests hold later releases to it:
python scripts/public_names.py > tests/golden/public-0.3.json
"""

import json

import click
from typer.main import get_command

import whence
from whence import methods
from whence.cli.app import app


def list_options(command: click.Command) -> list[str]:
    """List the long options of a command, and of what it consists of."""
    options = [o for p in command.params for o in [*p.opts, *p.secondary_opts] if o[:2] == "--"]
    commands = getattr(command, "commands", {})
    return sorted([*options, *(f"{n} {o}" for n, c in commands.items() for o in list_options(c))])


def list_public() -> dict[str, dict[str, list[str]]]:
    """List the names of the package, the options of its commands and those of its methods."""
    commands = getattr(get_command(app), "commands", {})
    return {
        "names": {"whence": sorted(whence.__all__)},
        "commands": {name: list_options(command) for name, command in sorted(commands.items())},
        "methods": {n: sorted(methods.describe(n).options) for n in methods.available()},
    }


if __name__ == "__main__":
    print(json.dumps(list_public(), indent=1))
