"""Run the command line in a process of its own: ``whence``, or ``python -m whence.cli``."""

from whence._util.collecting import run_one_command
from whence.cli.app import app


def main() -> None:
    """Run the command that the arguments of the process name, and end."""
    with run_one_command():
        app(prog_name="whence")


if __name__ == "__main__":
    main()
