import numpy as np
import pytest

from tests.generations import make_generation
from whence import WhenceError
from whence.explanation import ScoreMatrix
from whence.layout.grouping import TokenGroup
from whence.render import draw_matrix
from whence.render.colors import to_hex
from whence.render.drawing import Figure, Rectangle, TextLine
from whence.render.matrix import name_label
from whence.render.shades import shade_word


def test_a_cell_for_each_score_of_what_stands_before():
    matrix = make_generation().matrix(0, by="word")
    figure = draw_matrix(matrix, title="Tim and Sue")
    labels = [shape.text for shape in figure.shapes if isinstance(shape, TextLine)]
    assert labels[0] == "Tim and Sue"
    assert labels[1:10] == matrix.columns
    strongest = to_hex(shade_word(1.0, "light"))
    cells = [s for s in figure.shapes if isinstance(s, Rectangle) and s.color == strongest]
    by_row = sorted(cells, key=lambda cell: cell.y)[: len(matrix.rows)]
    first, width = min(c.x for c in by_row), by_row[0].width + 1
    columns = [round((cell.x - first) / width) for cell in by_row]
    # Scores grow along the text, but "Sue" has two tokens.
    expected = np.abs(matrix.values).argmax(1)
    assert columns == (expected - expected.min()).tolist()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("by", ["token", "sentence", {"who": "Tim has"}])
def test_figures_are_drawn_as_pixels_and_as_svg(by, theme, tmp_path):
    matrix = make_generation(signed=True).matrix(0, by)
    figure = draw_matrix(matrix, theme=theme)
    image = figure.to_image()
    assert image.size == (round(figure.width), round(figure.height))
    assert len(image.getcolors(10**6)) > 20
    svg = figure.to_svg()
    assert "rotate(-90" in svg
    assert ("- against" in svg) == bool((matrix.values < 0).any())


def test_text_is_drawn_upward():
    for right in (False, True):
        lines = [
            TextLine(60, 50, "mmm", 12, "#000000", right=right, upward=upward)
            for upward in (False, True)
        ]
        flat, turned = (
            np.asarray(Figure(100, 100, "#ffffff", [line]).to_image().convert("L")) < 128
            for line in lines
        )
        (down, across), (down_turned, across_turned) = np.nonzero(flat), np.nonzero(turned)
        height, width = np.ptp(down), np.ptp(across)
        assert abs(np.ptp(down_turned) - width) <= 1
        assert abs(np.ptp(across_turned) - height) <= 1
        # From its place it goes upward, or ends there.
        assert (down_turned.min() >= 49) if right else (down_turned.max() <= 51)
        assert across_turned.max() <= 61


def test_spaces_have_names():
    assert [name_label(name) for name in ("a", "\n", " ", "a\nb", "")] == [
        *("a", "\\n", " ", "a b", "")
    ]


def make_matrix(rows, columns):
    groups = [TokenGroup(str(n), (n,)) for n in range(columns)]
    names = [group.name for group in groups]
    return ScoreMatrix(["r"] * rows, names, np.zeros((rows, columns)), [None] * rows, [], groups)


def test_tables_that_nobody_could_read_are_refused():
    with pytest.raises(WhenceError, match="nothing to draw"):
        draw_matrix(make_matrix(1, 0))
    with pytest.raises(WhenceError, match="1 by 601 cells cannot be read; choose larger parts"):
        draw_matrix(make_matrix(1, 601))
    with pytest.raises(WhenceError, match="There is no theme"):
        draw_matrix(make_matrix(1, 1), theme="pink")
    assert draw_matrix(make_matrix(2, 1)).to_image().size[0] > 0
