"""What the page shows, as HTML. `static/page.js` paints what is marked with data- attributes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from whence import methods
from whence._util.text import to_printable
from whence.explanation import Explanation
from whence.faithfulness import Curves, Faithfulness
from whence.render import list_colormaps
from whence.render.overlay import is_signed, scale_to_largest, stretch_contrast, to_finite_array
from whence.render.shades import name_shade
from whence.render.words import Word, find_spaces, list_words
from whence.web.desk import Answer, Chance, Seen
from whence.web.heads import Heads, head_colors

_TOP = 5

HEADING = (
    '<header class="whence"><h1>whence</h1><p>From which parts of its input did a model\'s '
    "decision come, and can the answer be trusted?</p></header>"
)
_THRESHOLD = (
    '<label>Threshold <input type="range" min="0" max="1" step="0.01" value="0" '
    'data-control="threshold"></label>'
)
CONTROLS = {
    "image": (
        '<div class="whence controls" role="group" aria-label="How maps are shown">'
        '<label>Opacity <input type="range" min="0" max="1" step="0.01" value="0.6" '
        'data-control="opacity"></label>'
        '<label>Colours <select data-control="colormap">'
        + "".join(f"<option>{name}</option>" for name in list_colormaps())
        + f"</select></label>{_THRESHOLD}"
        '<span class="note">Point at a map, or move in it with the arrow keys, for the score of a '
        "patch. Where a method has both signs, orange is for the class and blue against it.</span>"
        "</div>"
    ),
    "text": (
        '<div class="whence controls" role="group" aria-label="How words are shown">'
        '<label>Show <select data-control="unit"><option>words</option><option>tokens</option>'
        f"</select></label>{_THRESHOLD}"
        '<span class="note">Orange is for the class; blue, where a method has it, is against '
        "it.</span></div>"
    ),
}
ABOUT_FAITHFULNESS = (
    '<p class="whence">If a method is right, the class falls at once when what it found most '
    "relevant is taken away, and stays when the least relevant is: a large area between the two "
    "curves is a high score. Scores that know nothing get about 0.</p>"
)


def note(text: str) -> str:
    """A line that stands back."""
    return f'<p class="whence note">{_text(text)}</p>'


def chances(seen: Seen) -> str:
    """The most probable classes, each with a bar."""
    rows = "".join(map(_chance, seen.chances[:_TOP]))
    notes = "".join(f'<p class="note">Note: {escape(to_printable(n))}.</p>' for n in seen.notes)
    return (
        f'<section class="whence chances" aria-label="Probabilities"><ol>{rows}</ol>{notes}'
        f"</section>"
    )


def _chance(one: Chance) -> str:
    share = one.probability or 0.0
    return (
        f'<li><span class="name" dir="auto">{_text(one.name)}</span>'
        f'<span class="percent">{percent(one.probability)}</span>'
        f'<span class="bar"><i style="width:{100 * share:.1f}%"></i></span></li>'
    )


def percent(probability: float | None) -> str:
    """A probability as people read it, never rounded to certainty."""
    if probability is None:
        return ""
    share = 100 * probability
    if share < 0.1:
        return "&lt;0.1%"
    return "&gt;99.9%" if share > 99.9 else f"{share:.1f}%"


def maps(photo: Image.Image, answers: Sequence[Answer]) -> str:
    """Overlays, methods by classes."""
    blocks = "".join(_method(answer, _figures) for answer in answers)
    return (
        f'<section class="whence maps" aria-label="Maps" style="{_photo_style(photo)}">'
        f"{blocks}</section>"
    )


def texts(answers: Sequence[Answer]) -> str:
    """Coloured words, methods by classes."""
    blocks = "".join(_method(answer, _paragraphs) for answer in answers)
    return f'<section class="whence texts" aria-label="Words">{blocks}</section>'


def _method(answer: Answer, shown: Any) -> str:
    about = escape(methods.describe(answer.method).summary) if _is_known(answer.method) else ""
    same = answer.explanation.class_note if answer.explanation is not None else ""
    note = f' <span class="note">{escape(same)}</span>' if same else ""
    if answer.explanation is None:
        inside = f'<p class="failed" role="alert">{_text(answer.error)}</p>'
    else:
        inside = shown(answer.method, answer.explanation)
    return (
        f'<div class="method"><h3 title="{about}">{_text(answer.method)}{note}</h3>'
        f'<div class="cells">{inside}</div></div>'
    )


def _is_known(method: str) -> bool:
    return method in methods.available()


def _figures(method: str, explanation: Explanation) -> str:
    grid = explanation.grid or (1, 1)
    cells = []
    for one in explanation.classes():
        scores = one.scores.reshape(grid)
        shares = stretch_contrast(scores)
        row, column = np.unravel_index(np.abs(scores).argmax(), grid)
        about = f"{method} for {one.name}: strongest in row {row + 1}, column {column + 1}"
        cells.append(
            f'<figure><div class="map" tabindex="0" role="img" aria-label="{_text(about)}" '
            f'data-rows="{grid[0]}" data-columns="{grid[1]}" '
            f'data-signed="{int(is_signed(scores))}" '
            f'data-scores="{_numbers(scores)}" data-shares="{_numbers(shares)}">'
            f'<i class="photo"></i><canvas aria-hidden="true"></canvas></div>'
            f"<figcaption><span dir='auto'>{_text(one.name)}</span> "
            f'<span class="percent">{percent(one.probability)}</span></figcaption></figure>'
        )
    return "".join(cells)


def _paragraphs(_method: str, explanation: Explanation) -> str:
    cells = []
    for at, one in enumerate(explanation.classes()):
        words = _words("words", list_words(explanation, 0, at))
        tokens = _words("words tokens", _tokens_of(explanation, one.scores))
        cells.append(
            f"<div><h4><span dir='auto'>{_text(one.name)}</span> "
            f'<span class="percent">{percent(one.probability)}</span></h4>{words}{tokens}</div>'
        )
    return "".join(cells)


def _tokens_of(explanation: Explanation, scores: Any) -> list[Word]:
    if explanation.tokens is None:
        return []
    strings = [to_printable(s) for s in explanation.tokens.strings[0]]
    values = to_finite_array(scores)
    triples = zip(strings, values, scale_to_largest(values), strict=True)
    return [Word(text, float(score), float(share), True) for text, score, share in triples]


def _words(style: str, words: Iterable[Word]) -> str:
    spans = "".join(
        f'<span class="{name_shade(word.level)}" data-share="{word.share:.3f}" '
        f'title="{word.share:+.2f} of the largest (score {word.score:.4g})">{_text(word.text)}'
        f"</span>{' ' if word.space else ''}"
        for word in words
    )
    return f'<p class="{style}" dir="auto">{spans}</p>'


def faithfulness(found: Faithfulness, photo: Image.Image | None, failed: Sequence[Answer]) -> str:
    """The curves of each class, who wins, and the input as it was at each step."""
    notes = "".join(
        f'<p class="failed">{_text(a.method)}: {_text(a.error)}</p>' for a in failed if a.error
    )
    style = "" if photo is None else _photo_style(photo)
    classes = "".join(_class_curves(found, target) for target in found.targets)
    return (
        f'<section class="whence faithful" aria-label="Faithfulness" style="{style}">'
        f"{notes}{classes}</section>"
    )


def _class_curves(found: Faithfulness, target: int) -> str:
    ranked = found.ranked(target)
    rows = "".join(
        f"<tr><th scope='row'>{_text(one.method)}</th><td>{one.score:.1f}</td>"
        f"<td>{one.auc('most'):.1f}</td><td>{one.auc('least'):.1f}</td></tr>"
        for one in ranked
    )
    # By name, so that a method has one colour, whatever its rank for a class.
    names = sorted(one.method for one in ranked)
    colors = dict(zip(names, head_colors(len(names)), strict=True))
    steps = [{"color": colors[one.method], **_steps(found, one)} for one in ranked]
    return (
        f'<div class="curves" data-curves="{escape(json.dumps(steps))}">'
        f"<h3 dir='auto'>{_text(ranked[0].class_name)}</h3>"
        f'<p class="verdict">{_verdict(found.best(target))}</p>'
        f'<div class="plot" role="img" aria-label="Probability as parts are removed"></div>'
        f'<div class="scroll"><table><thead><tr><th scope="col">method</th>'
        f'<th scope="col">faithfulness</th><th scope="col">most first</th>'
        f'<th scope="col">least first</th></tr></thead><tbody>{rows}</tbody></table></div>'
        f'<div class="masked"></div></div>'
    )


def _verdict(best: Sequence[Curves]) -> str:
    if best[0].score <= 0:
        return "No method is better than chance on this input."
    winners = " and ".join(_text(one.method) for one in best)
    return f"<b>{winners}</b> {'win' if len(best) > 1 else 'wins'} on this input."


def _steps(found: Faithfulness, one: Curves) -> dict[str, Any]:
    """Curves of a method and a class, and when each part of the input is removed."""
    orders = ["most", "least", *(["random"] if one.random is not None else [])]
    facts: dict[str, Any] = {
        "method": one.method,
        "steps": one.steps,
        "curves": {order: [round(p, 4) for p in one.curve(order)] for order in orders},  # type: ignore[arg-type]
    }
    turns = {order: _turns(one, order) for order in orders}
    if found.words is None:
        facts["masks"] = {order: _png(turn.astype(np.uint8)) for order, turn in turns.items()}
    else:
        facts["words"] = [to_printable(word) for word in found.words]
        facts["spaces"] = find_spaces(facts["words"])
        facts["turns"] = {order: turn.tolist() for order, turn in turns.items()}
    return facts


def _turns(one: Curves, order: Any) -> Any:
    """The first step at which each unit is removed; the number of steps if never."""
    removed = [one.removed(step, order).numpy() for step in range(len(one.steps))]
    return len(one.steps) - np.sum(removed, 0)


def heads(found: Heads, photo: Image.Image | None) -> str:
    """A contact sheet of all heads, and a picture of one layer in which each head has a colour."""
    style = "" if photo is None else _photo_style(photo)
    most = max((len(rows) for rows in found.rows), default=0)
    data = {
        "grid": found.grid,
        "colors": head_colors(most) if most else [],
        "layers": found.layers,
        "names": found.names if found.grid is None else None,
        "rows": [[_share_bytes(head) for head in rows] for rows in found.rows],
        "largest": [[float(f"{head.max():.3g}") for head in rows] for rows in found.rows],
    }
    chosen = _text(found.names[found.token])
    return (
        f'<section class="whence heads" aria-label="Heads" style="{style}" '
        f'data-heads="{escape(json.dumps(data))}">'
        f"<p>What <b>{chosen}</b> attends to: a row for each layer, a column for each head; each "
        f"picture relative to its largest weight.</p>"
        f'<div class="sheet"></div><div class="layer"></div></section>'
    )


def _share_bytes(row: Any) -> str:
    return base64.b64encode(
        np.round(255 * scale_to_largest(row)).astype(np.uint8).tobytes()
    ).decode()


def _photo_style(photo: Image.Image) -> str:
    content = io.BytesIO()
    photo.convert("RGB").save(content, "JPEG", quality=88)
    data = base64.b64encode(content.getvalue()).decode()
    return f"--photo:url(data:image/jpeg;base64,{data});--ratio:{photo.width}/{photo.height}"


def _png(values: Any) -> str:
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _numbers(values: Any) -> str:
    return " ".join(f"{value:.4g}" for value in np.asarray(values).ravel())


def _text(text: str) -> str:
    return escape(to_printable(text))
