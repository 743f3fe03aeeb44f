"""Write the hashes of the models in this repository, which are checked when they are loaded.

Run it when a model was trained anew: python scripts/hash_models.py
"""

from pathlib import Path

from whence._util.files import write_atomically
from whence.demo import FOLDER
from whence.models.folder import SUMS, hash_files

ROOT = Path(__file__).parents[1]
SHAPES = ROOT / "examples" / "shapes_clip"


def format_sums(hashes: dict[str, str]) -> str:
    """Format hashes as `sha256sum --check` reads them."""
    return "".join(f"{digest}  {name}\n" for name, digest in hashes.items())


def hash_embedded() -> dict[str, str]:
    """Hash the files of all models that come with whence."""
    folders = sorted(path.parent for path in FOLDER.glob("*/config.json"))
    return {f"{f.name}/{name}": digest for f in folders for name, digest in hash_files(f).items()}


def main() -> None:
    """Write one file for the models of the package, and one for that of the examples."""
    for folder, hashes in {FOLDER: hash_embedded(), SHAPES: hash_files(SHAPES)}.items():
        write_atomically(folder / SUMS, format_sums(hashes).encode())
        print(folder / SUMS)


if __name__ == "__main__":
    main()
