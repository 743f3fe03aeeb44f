"""Embedded models are loaded only as they were released."""

import hashlib
import importlib.util
import shutil
from pathlib import Path

import pytest

from whence import WhenceError, models
from whence.demo import FOLDER
from whence.models import folder as folders
from whence.models.folder import SUMS, check_embedded

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "examples" / "shapes_clip"


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the folder of embedded models, in which files can be damaged."""
    demo = tmp_path / "demo"
    demo.mkdir()
    shutil.copy(FOLDER / SUMS, demo)
    shutil.copytree(FOLDER / "pets", demo / "pets")
    monkeypatch.setattr(folders, "FOLDER", demo)
    return demo


def hash_plainly(folder: Path, pattern: str) -> dict[str, str]:
    """The hashes of all files but cards, each read at once."""
    files = [f for f in folder.glob(pattern) if f.suffix != ".md" and f.name != SUMS]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.mark.parametrize(("folder", "pattern"), [(FOLDER, "[!_]*/*"), (SHAPES, "*")])
def test_the_hashes_are_those_of_the_files(folder, pattern):
    if not folder.is_dir():
        pytest.skip("examples are not beside these tests")
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert listed == hash_plainly(folder, pattern), "run python scripts/hash_models.py"


def test_the_script_writes_them(tmp_path, monkeypatch):
    file = ROOT / "scripts" / "hash_models.py"
    if not file.is_file():
        pytest.skip("scripts are not beside these tests")
    spec = importlib.util.spec_from_file_location("hash_models", file)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = script.format_sums(script.hash_embedded())
    assert written == (FOLDER / SUMS).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "whence.json"])
def test_a_flipped_bit_is_refused(copied, file):
    damaged = copied / "pets" / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(WhenceError, match=rf"'pets/{file}' is damaged.*--force-reinstall"):
        models.load(copied / "pets")


def test_files_that_are_missing_or_added_are_refused(copied):
    check_embedded(copied / "pets")
    (copied / "pets" / ".DS_Store").write_bytes(b"\0")
    (copied / "pets" / "README.md").write_text("a card may change")
    check_embedded(copied / "pets")
    extra = copied / "pets" / "adapter_config.json"
    extra.write_text("{}")
    with pytest.raises(WhenceError, match=r"'pets/adapter_config.json' does not belong to it"):
        check_embedded(copied / "pets")
    extra.unlink()
    (copied / "pets" / "preprocessor_config.json").unlink()
    with pytest.raises(WhenceError, match=r"'pets/preprocessor_config.json' is not there"):
        check_embedded(copied / "pets")


@pytest.mark.parametrize("sums", [None, "no hashes\n", "\0"])
def test_hashes_that_cannot_be_read_are_no_pass(copied, sums):
    if sums is None:
        (copied / SUMS).unlink()
    else:
        (copied / SUMS).write_text(sums)
    with pytest.raises(WhenceError, match="cannot be read"):
        check_embedded(copied / "pets")


def test_models_from_elsewhere_have_no_hashes(copied, tmp_path):
    mine = shutil.copytree(copied / "pets", tmp_path / "pets")
    (mine / "model.safetensors").write_bytes(b"damaged")
    check_embedded(mine)
    with pytest.raises(WhenceError, match="pets' cannot be loaded"):
        models.load(mine)
