"""Print what CHANGELOG.md says of a tag, if the tag names the version that the code has.

python scripts/release_notes.py v0.2.0
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_version(root: Path) -> str:
    """Read the version of the code, without importing it."""
    text = (root / "src" / "whence" / "version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def make_notes(changelog: str, version: str, tag: str, address: str = "") -> str:
    """Take the newest section of the changelog.

    Args:
        changelog: The text of CHANGELOG.md.
        version: The version that the code has.
        tag: The tag that is released.
        address: Of the repository, so that links lead to the files of the tag; empty: left as is.

    Raises:
        SystemExit: Tag, version and changelog do not agree, or the section has no date.
    """
    if tag != f"v{version}":
        raise SystemExit(f"The tag {tag} does not name version {version}, which the code has.")
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    heading, _, body = sections[0].partition("\n")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        raise SystemExit(f"The changelog begins with '{heading}', not with '{version} (its date)'.")
    links = f"]({address}/blob/{tag}/" if address else "]("
    return re.sub(r"\]\((?![a-z]+:|#)", links, body.strip()) + "\n"


def main() -> None:
    """Print the notes of the tag on the command line."""
    parts = [os.environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")]
    address = "/".join(parts) if all(parts) else ""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    print(make_notes(changelog, read_version(ROOT), sys.argv[1], address), end="")


if __name__ == "__main__":
    main()
