"""List what an extra of pyproject.toml asks for, or what all need, without the package itself.

python scripts/list_extra.py docs
python scripts/list_extra.py
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one requirement a line."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extra = sys.argv[1:]
    listed = project["optional-dependencies"][extra[0]] if extra else project["dependencies"]
    print(*listed, sep="\n")


if __name__ == "__main__":
    main()
