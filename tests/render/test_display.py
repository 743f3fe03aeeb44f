import base64
import io
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from tests.render.samples import explain_image, explain_text
from whence import WhenceError
from whence.explanation import Photo
from whence.render import Figure, draw_figure, format_text_page
from whence.render.colors import get_colormap
from whence.render.display import show


def print_shown(explanation, image=None, **options) -> str:
    console = Console(file=io.StringIO(), width=80, **options)
    show(explanation, image, console)
    return console.file.getvalue()


@pytest.fixture
def notebook(monkeypatch):
    """A running kernel, as far as whence looks at it; gives what was displayed."""
    displayed = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display.display = displayed.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return displayed


def test_importing_whence_stays_light():
    code = (
        "import sys, whence; "
        "assert not [m for m in ('PIL', 'rich', 'whence.render') if m in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_on_a_terminal(capsys):
    explain_text(["good", "film"], [[1.0, 0.5], [0.2, 0.1]], ["yes", "no"]).show()
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["yes  66.5%", "good film", "", "no  24.5%", "good film", ""]


def test_heatmap_in_half_blocks():
    halves = explain_image([[0.0, 0.0], [1.0, 1.0]])
    printed = print_shown(halves, force_terminal=True, color_system="truecolor")
    drawn, said = printed.rstrip("\n").split("\n\n")
    heading, *rows = drawn.split("\n")
    assert "class 0" in heading
    assert said == f"Model {halves.model}."
    assert len(rows) == 18
    assert {row.count("▀") for row in rows} == {36}
    colors = get_colormap("heat", signed=False)
    zero, one = (";".join(map(str, color)) for color in ((200, 200, 200), colors(1.0)))
    assert rows[0].startswith(f"\x1b[38;2;{zero};48;2;{zero}m▀")
    assert rows[-1].removesuffix("\x1b[0m").endswith(f"\x1b[38;2;{one};48;2;{one}m▀")


def test_heatmap_over_a_photo_on_a_terminal():
    photo = Image.new("RGB", (300, 300), (0, 90, 200))
    zeros = explain_image(np.zeros((2, 2)))
    printed = print_shown(zeros, photo, force_terminal=True, color_system="truecolor")
    red, green, blue = 0, 90, 200
    grey = photo.convert("L").getpixel((0, 0))
    expected = [round(0.1 * channel + 0.9 * grey) for channel in (red, green, blue)]
    first = printed.split("▀")[0].split("38;2;")[-1].split(";48")[0].split(";")
    assert np.abs(np.array(first, int) - expected).max() <= 1


def test_heatmap_without_colors():
    lines = print_shown(explain_image([[0.0, 1.0], [-1.0, 0.0]]), color_system=None).splitlines()
    assert lines[1][-1] == "█"
    assert lines[18][0] == "="
    assert lines[1][0] == " "


def test_sentences_on_a_terminal_in_pages_and_notebooks():
    scores = np.zeros((10, 10))
    scores[2:4, 2:4] = 1.0
    photo = explain_image(scores)
    text = explain_text(["a", "fine", "film", "to", "see"], [0.0, 2.0, 0.1, 0.0, 0.0])
    photo.model_knows = "cat or dog"
    told = "4% of the photo holds all of the evidence, around the upper left (x 0.30, y 0.30)."
    for one, sentence in ((photo, told), (text, "“fine” holds 95% of the evidence.")):
        assert sentence in print_shown(one).replace("\n", " ").replace("  ", " ")
        assert sentence in one._repr_html_()
        assert sentence in one.to_html()
    assert "cat or dog" in photo._repr_html_()
    assert "it knows cat or dog." in print_shown(photo)


def test_text_cannot_be_laid_over_a_photo():
    with pytest.raises(WhenceError, match="cannot be laid over an image"):
        explain_text(["a"], [1.0]).show(Image.new("RGB", (2, 2)))


def test_notebook_displays_the_explanation_or_its_figure(notebook):
    explanation = explain_image(np.eye(2))
    explanation.show()
    explanation.show(image=Image.new("RGB", (20, 20)))
    assert notebook[0] is explanation
    assert isinstance(notebook[1], Figure)


@pytest.fixture
def viewer(monkeypatch):
    """A screen and a viewer; gives the pictures that it was asked to open, and may be closed."""
    opened = SimpleNamespace(images=[], works=True)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")

    def show_image(image):
        opened.images += [image] * opened.works
        return opened.works

    monkeypatch.setattr("whence.render.display.ImageShow.show", show_image)
    return opened


def explain_photo():
    explanation = explain_image(np.eye(2), "cat")
    explanation.photos = [Photo(Image.new("RGB", (20, 20)), (0, 0, 20, 20))]
    return explanation


def test_a_photo_opens_where_there_is_a_screen(viewer, capsys, monkeypatch):
    explanation = explain_photo()
    explanation.show()
    assert viewer.images == [explanation.plot().to_image(2.0)]
    assert capsys.readouterr().out == ""
    several = explain_photo()
    for name in ("scores", "target", "logits"):
        setattr(several, name, torch.cat([getattr(several, name)] * 3))
    several.photos, several.target_names = several.photos * 3, several.target_names * 3
    several.show()
    assert viewer.images.pop() == explanation.plot().to_image(2.0)
    assert capsys.readouterr().out.startswith("The first of 3 photos is shown")
    viewer.works = False
    explanation.show()
    assert capsys.readouterr().out.startswith("cat ")
    monkeypatch.delenv("DISPLAY")
    viewer.works = True
    explanation.show()
    assert capsys.readouterr().out.startswith("cat ")
    assert len(viewer.images) == 1


def test_texts_are_printed_where_there_is_a_screen(viewer, capsys):
    explain_text(["good"], [1.0]).show()
    assert not viewer.images
    assert "good" in capsys.readouterr().out


def test_a_path_gets_the_figure_instead(viewer, tmp_path, capsys):
    explain_photo().show(path=tmp_path / "a.png")
    explain_image(np.eye(2)).show(Image.new("RGB", (4, 4)), path=tmp_path / "b.svg")
    explain_text(["good"], [1.0]).show(path=tmp_path / "c.html")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "b.svg", "c.html"]
    assert "good" in (tmp_path / "c.html").read_text()
    assert not viewer.images
    assert capsys.readouterr().out == ""


def test_ipython_without_a_kernel_is_a_terminal(notebook, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    explain_text(["good"], [1.0]).show()
    assert not notebook
    assert "good" in capsys.readouterr().out


def test_html_of_heatmaps_is_the_map_alone():
    explanation = explain_image(torch.rand(2, 4, 8), ["<cat>", "dog"])
    explanation.image_size = (32, 64)
    html = explanation._repr_html_()
    assert html.count("<figure>") == 2
    assert "&lt;cat&gt;" in html
    content = html.split("base64,")[1].split('"')[0]
    picture = Image.open(io.BytesIO(base64.b64decode(content)))
    assert picture.size == (400, 200)


def test_html_of_text_has_all_classes():
    html = explain_text(["good"], [[1.0], [-1.0]], ["yes", "no"])._repr_html_()
    assert html.count("<h3>") == 2
    assert html.count("good</span>") == 2


def test_html_of_many_samples_is_cut():
    explanation = explain_image(np.eye(2))
    explanation.scores = explanation.scores.repeat(20, 1)
    explanation.target = explanation.target.repeat(20)
    explanation.logits = explanation.logits.repeat(20, 1)
    html = explanation._repr_html_()
    assert html.count("<figure>") == 16
    assert "and 4 more" in html


@pytest.mark.parametrize("specific", [True, False])
def test_what_is_the_same_for_every_class_says_so_everywhere(specific, tmp_path):
    photo, text = explain_image([[1.0, 2.0]]), explain_text(["good", "film"], [1.0, 2.0])
    for one in (photo, text):
        one.method, one.class_specific = "rollout", specific
    draw_figure(photo, image=Image.new("RGB", (8, 4))).save(tmp_path / "figure.svg")
    pages = [
        (tmp_path / "figure.svg").read_text(),
        format_text_page(text),
        *(one._repr_html_() for one in (photo, text)),
        *(print_shown(one) for one in (photo, text)),
    ]
    for page in pages:
        assert ("the same for every class" in page) is not specific
