"""`python -m whence` is `whence`."""

from whence.cli.app import app

if __name__ == "__main__":
    app(prog_name="whence")
