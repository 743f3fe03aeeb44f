"""Run the command line as ``python -m whence.cli``."""

from whence.cli.app import app

if __name__ == "__main__":
    app(prog_name="whence")
