"""Run the command line in a process of its own: ``whence``, or ``python -m whence.cli``."""

from whence._util.collecting import end_quickly
from whence.cli.app import app


def main() -> None:
    """Run the command that the arguments of the process name, and end."""
    with end_quickly():
        app(prog_name="whence")


if __name__ == "__main__":
    main()
