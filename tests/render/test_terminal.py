"""Words on a terminal. Heatmaps there are tested by `show`."""

from rich.console import Console

from tests.render.samples import explain_text
from whence.render import format_terminal_text
from whence.render.shades import shade_terminal_word


def test_terminal_words_carry_colors():
    text = format_terminal_text(explain_text(["bad", "film", "ever"], [-1.0, 0.4, 0.01]))
    assert text.plain == "bad film ever"
    spans = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert tuple(spans["bad"].bgcolor.triplet) == tuple(shade_terminal_word(-1))
    assert spans["bad"].bold
    assert not spans["film"].bold
    assert "ever" not in spans
    console = Console(force_terminal=True, color_system="truecolor", width=40)
    with console.capture() as capture:
        console.print(text)
    red, green, blue = shade_terminal_word(-1)
    assert f"48;2;{red};{green};{blue}mbad" in capture.get()
