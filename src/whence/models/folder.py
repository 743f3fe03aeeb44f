"""Folders of models: those that come with whence, what one holds, and what its model knows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from whence._util.files import exists, is_file
from whence._util.text import to_printable
from whence.demo import FOLDER
from whence.errors import WhenceError
from whence.inputs.sources import NOUNS, Kind
from whence.version import __version__

EMBEDDED: dict[Kind, Path] = {"image": FOLDER / "pets", "text": FOLDER / "sentiment"}
EMBEDDED_LANGUAGE_MODEL = FOLDER / "stories"
KNOWLEDGE = "whence.json"
SUMS = "SHA256SUMS"
_LONGEST = 200
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def list_embedded() -> dict[str, Path]:
    """List the folders of the models that come with whence, by their names."""
    folders = (*EMBEDDED.values(), EMBEDDED_LANGUAGE_MODEL)
    return {folder.name: folder for folder in folders if folder.is_dir()}


def find_embedded(name: str | Path | None, kind: Kind | None) -> Path | None:
    """Find the embedded model of a name, or without one that for a kind; None for other names.

    Raises:
        WhenceError: There is no name, and no embedded model for the kind.
    """
    if name is not None:
        is_here = isinstance(name, Path) or exists(Path(name))
        return None if is_here else list_embedded().get(str(name))
    if kind is None:
        raise WhenceError("Name a model, or say for which kind of input: 'image' or 'text'.")
    if kind not in EMBEDDED or not EMBEDDED[kind].is_dir():
        raise WhenceError(f"This installation carries no model for {NOUNS[kind]}; name one.")
    return EMBEDDED[kind]


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds no model, or only pickled weights."""
    config = folder / "config.json"
    if not config.is_file():
        raise WhenceError(f"'{folder}' holds no model: there is no config.json in it.")
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise WhenceError(f"'{config}' is not valid JSON.") from None
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickled:
        raise WhenceError(
            f"'{folder}' holds its weights only as a pickle ({pickled[0]}), which can run code "
            f"when it is opened. If you trust it, load it yourself and save it again with "
            f"model.save_pretrained(folder), which writes safetensors."
        )
    raise WhenceError(f"'{folder}' holds no weights: there is no model.safetensors in it.")


def read_architectures(name: str | Path) -> list[str]:
    """Read the names of a model's classes in the config.json of its folder or of the hub's cache.

    Returns:
        The names; none if there is no such file, or it says nothing.
    """
    config = Path(name).expanduser() / "config.json"
    if not is_file(config):
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(str(name), "config.json")
        except HFValidationError:  # it can be no name of the hub
            return []
        if not isinstance(cached, str):
            return []
        config = Path(cached)
    try:
        named = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return []
    return [str(one) for one in named] if isinstance(named, list) else []


def read_knowledge(folder: Path) -> str:
    """Read what a model knows from its folder's whence.json, such as {"knows": "cat or dog"}.

    Any folder of a model may have that file. It is said beside every result of the model.

    Returns:
        A line without a closing period; empty if there is no such file.

    Raises:
        WhenceError: The file is there and says something else.
    """
    file = folder / KNOWLEDGE
    if not is_file(file):
        return ""
    try:
        knows = json.loads(file.read_text(encoding="utf-8"))["knows"]
    except (OSError, ValueError, LookupError, TypeError):
        knows = None
    if not isinstance(knows, str) or not knows.strip() or len(knows) > _LONGEST:
        raise WhenceError(
            f"'{file}' should say what the model knows, in at most {_LONGEST} letters, such as "
            f'{{"knows": "cat or dog"}}; or delete it.'
        )
    return to_printable(knows.strip()).removesuffix(".")


def check_embedded(folder: Path) -> None:
    """Compare the files of a model that comes with whence with their hashes; others pass.

    Raises:
        WhenceError: A file is damaged, is not there, or was added.
    """
    if folder.resolve().parent != FOLDER.resolve():
        return
    name = folder.resolve().name
    try:
        expected = read_sums(FOLDER / SUMS)
        hashes = {f"{name}/{file}": digest for file, digest in hash_files(folder).items()}
    except (OSError, ValueError) as error:
        raise _refuse(name, f"its files or their hashes cannot be read ({error})") from error
    expected = {file: digest for file, digest in expected.items() if file.startswith(f"{name}/")}
    for file in sorted(expected.keys() | hashes.keys()):
        if file not in hashes:
            raise _refuse(name, f"'{file}' is not there")
        if file not in expected:
            raise _refuse(name, f"'{file}' does not belong to it")
        if hashes[file] != expected[file]:
            raise _refuse(name, f"'{file}' is damaged or was replaced")


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that a model is loaded from; not of its card or of hidden files."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix != ".md")
    return {f.name: _hash_file(f) for f in files if f.name != SUMS and f.name[0] != "."}


def read_sums(path: Path) -> dict[str, str]:
    """Read a file of hashes as `sha256sum` writes it: a hash, two spaces and a name a line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse(name: str, what: str) -> WhenceError:
    return WhenceError(
        f"The embedded model '{name}' is not as whence {__version__} was released with it: {what}. "
        f"Install whence again from where you have it: pip install --force-reinstall --no-deps "
        f"WHEEL-OR-FOLDER; in a clone, git checkout src/whence/demo."
    )
