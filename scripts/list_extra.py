"""List what an extra of pyproject.toml asks for, without the package itself.

python scripts/list_extra.py docs
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one requirement a line."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    print(*extras[sys.argv[1]], sep="\n")


if __name__ == "__main__":
    main()
