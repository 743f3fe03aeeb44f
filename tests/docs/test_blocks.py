"""Every code block of the README and the site runs as it is written."""

import json
import shutil
from pathlib import Path

import pytest

from tests.benchmark import sets
from tests.docs.blocks import (
    SHOWN,
    Block,
    Command,
    list_commands,
    read_blocks,
    run_command,
    run_page,
)
from tests.docs.hub import save_hub
from tests.saved import make_photo, save_image_model, save_text_model
from tests.saved_media import draw_frames, make_sound, save_gif, save_wav
from whence.methods.registry import _methods as METHODS
from whence.rules.ruleset import _SETS as RULES
from whence.tracing.registration import registered_kinds as OPERATIONS

ROOT = Path(__file__).parents[2]
# Pages that take seconds each run with the slow tests.
SLOW = {
    "docs/activation-maximization.md",
    "docs/benchmark.md",
    "docs/gallery.md",
    "docs/howto/audit.md",
    "docs/howto/benchmark.md",
    "docs/howto/datasets-and-pipelines.md",
    "docs/howto/many-inputs.md",
    "docs/howto/own-method.md",
    "docs/howto/report.md",
    "docs/report.md",
    "docs/which-method.md",
}


def list_pages() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = (page for page in pages if any(b.language not in SHOWN for b in read_blocks(page)))
    return [page.relative_to(ROOT) for page in found]


def mark(page: Path):
    return pytest.param(page, marks=pytest.mark.slow if str(page) in SLOW else (), id=str(page))


@pytest.fixture(scope="session")
def hub(tmp_path_factory) -> Path:
    return save_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """The files that pages speak of: photos, texts, small datasets, folders of models."""
    import whence

    folder = tmp_path_factory.mktemp("files")
    demo = Path(whence.__file__).parent / "demo"
    shutil.copy(demo / "cat.jpg", folder)
    clone, photos = folder / "src" / "whence" / "demo", folder / "photos"
    clone.mkdir(parents=True)
    photos.mkdir()
    shutil.copy(demo / "cat.jpg", clone)
    shutil.copy(demo / "cat.jpg", photos / "tabby.jpg")
    make_photo().save(photos / "other.jpg")
    save_gif(folder / "clip.gif", draw_frames())
    save_wav(folder / "sound.wav", make_sound(8000))
    (folder / "frames").mkdir()
    for number, frame in enumerate(draw_frames(4)):
        frame.save(folder / "frames" / f"{number}.png")
    (folder / "reviews.csv").write_text(
        "text,label\nA gripping film.,positive\nAn unwatchable mess.,negative\n"
    )
    sets.photos(folder / "imagenet")
    sets.masked(folder / "pets")
    sets.reviews(folder / "movies")
    for name, save in {"my-vit": save_image_model, "my-bert": save_text_model}.items():
        (folder / name).mkdir()
        save(folder / name)
    shutil.copytree(demo / "stories", folder / "my-gpt")
    shutil.copytree(ROOT / "examples" / "shapes_clip", folder / "shapes_clip")
    passages = {"Sara": "Sara has a red ball.", "Ben": "Ben has a big drum."}
    (folder / "passages.json").write_text(json.dumps(passages))
    (folder / "prompt.txt").write_text(" ".join(passages.values()) + " Ben plays with the big")
    return folder


@pytest.fixture
def desk(hub, files, tmp_path, monkeypatch) -> Path:
    """A folder with these files to work in, and a hub that knows the models of the pages."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def _registries():
    """What a page registers is forgotten afterwards."""
    kept = [(registry, dict(registry)) for registry in (METHODS, RULES, OPERATIONS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_registries")
@pytest.mark.parametrize("page", [mark(page) for page in list_pages()])
def test_every_block_runs(page, desk):
    assert run_page(ROOT / page) > 0


def test_an_error_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\nText.\n```python\nx + y\n```\n")
    with pytest.raises(NameError, match="y") as caught:
        run_page(page)
    assert caught.traceback[-1].lineno + 1 == 8


def test_a_block_without_a_language_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```\nwhence explain\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        run_page(page)


def test_commands_are_those_after_a_dollar_sign():
    block = Block("console", "$ whence methods  # all of them\nattcat\n$ whence x \\\n  --y\n", 1)
    first, second = list_commands(block)
    assert (first.words, first.shown) == (["whence", "methods"], "attcat")
    assert (second.words, second.shown) == (["whence", "x", "--y"], "")


def test_a_command_that_fails_fails_the_page(desk):
    command = ["whence", "methods", "no-such-method"]
    with pytest.raises(AssertionError, match="no-such-method"):
        run_command(Command(command))
    run_command(Command(command, "Error: There is no method 'no-such-method'…"))
    with pytest.raises(AssertionError):
        run_command(Command(command, "Error: Something else."))
    with pytest.raises(AssertionError):
        run_command(Command(["whence", "methods"], "Error: There is no method"))
