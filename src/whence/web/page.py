"""The page itself: what stands where, and what is computed when."""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr
from PIL import Image

from whence._util.defaults import METHOD
from whence.demo import PHOTO, SENTENCES
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.web import bundle, views
from whence.web.desk import Answer, Desk, methods_for
from whence.web.inputs import FORMATS, Input, Photo, photo_from, sentence_from
from whence.web.limits import CLASSES, METHODS, PHOTO_BYTES, TEXT_CHARACTERS, UPLOAD_BYTES
from whence.web.uploads import Uploads

# One thread does all the work: memory is kept for every thread that ever did some.
_worker = ThreadPoolExecutor(1, "whence")
_log = logging.getLogger("whence.web")
# Of the classes that a model finds most probable, so many are explained at first.
_FIRST_CLASSES = 2
_FIRST_TOKEN = [("0: first token", 0)]
_SAMPLES: dict[Kind, dict[str, Any]] = {
    "image": {"Use the sample photo": PHOTO},
    "text": {f"Sample {n}": sentence for n, sentence in enumerate(SENTENCES, 1)},
}


def build(desk: Desk, uploads: Uploads) -> gr.Blocks:
    """The page for the models on a desk."""
    # Files that people sent are deleted an hour later.
    page = gr.Blocks(title="whence", analytics_enabled=False, delete_cache=(600, 3600))
    with page:
        gr.HTML(views.HEADING)
        with gr.Tabs():
            with gr.Tab("Photo"):
                _Tab(desk, uploads, "image")
            with gr.Tab("Text"):
                _Tab(desk, uploads, "text")
    return page


class _Tab:
    """Everything for one kind of input."""

    def __init__(self, desk: Desk, uploads: Uploads, kind: Kind) -> None:
        self.desk, self.uploads, self.kind = desk, uploads, kind
        with gr.Row():
            with gr.Column(min_width=280):
                self.what = _photo() if kind == "image" else _text()
                with gr.Row():
                    samples = {
                        gr.Button(name, size="sm", min_width=80): one
                        for name, one in _SAMPLES[kind].items()
                    }
            with gr.Column(min_width=280):
                self._choices()
        gr.HTML(views.CONTROLS[kind], apply_default_css=False)
        self.result = gr.HTML(apply_default_css=False)
        chosen = [self.model, self.what, self.classes, self.methods]
        shown = [self.chances, self.classes, self.result]
        _on(self.button.click, self.explain, chosen, shown, f"explain_{kind}")
        self.earlier = [*self._faithful(chosen), *self._heads()]
        self._save(chosen)
        given, start = [self.model, self.what, self.methods], [*shown, *self.earlier]
        _on(self.what.input if kind == "image" else self.what.submit, self.afresh, given, start)
        _on(self.model.input, self.afresh, given, start)
        for button, sample in samples.items():
            with_sample = functools.partial(self.sample, sample)
            _on(button.click, with_sample, [self.model, self.methods], [self.what, *start])

    def _choices(self) -> None:
        kind, names = self.kind, self.desk.names(self.kind)
        self.model = gr.Dropdown(names, value=names[0], label="Model", filterable=False)
        self.chances = gr.HTML(apply_default_css=False)
        self.classes = gr.Dropdown(
            self._class_choices(names[0]),
            value=[],
            multiselect=True,
            max_choices=CLASSES,
            label=f"Classes (up to {CLASSES}; the most probable if none)",
        )
        self.methods = gr.Dropdown(
            methods_for(kind),
            value=[METHOD],
            multiselect=True,
            max_choices=METHODS,
            label=f"Methods (up to {METHODS})",
        )
        self.button = gr.Button("Explain", variant="primary")

    def _faithful(self, chosen: list[Any]) -> list[Any]:
        with gr.Accordion("Is it faithful?", open=False):
            gr.HTML(views.ABOUT_FAITHFULNESS, apply_default_css=False)
            button = gr.Button("Remove parts, and watch the class")
            out = gr.HTML(apply_default_css=False)
            _on(button.click, self.faithful, chosen, out, f"faithful_{self.kind}")
        return [out]

    def _heads(self) -> list[Any]:
        with gr.Accordion("What do the heads attend to?", open=False):
            token = gr.Dropdown(_FIRST_TOKEN, value=0, label="Token")
            button = gr.Button("Show all heads")
            out = gr.HTML(apply_default_css=False)
            given = [self.model, self.what, token]
            _on(button.click, self.heads, given, [token, out], f"heads_{self.kind}")
            _on(token.input, self.heads, given, [token, out])
        return [out, token]

    def _save(self, chosen: list[Any]) -> None:
        with gr.Accordion("Save and open", open=False):
            button = gr.Button("Make a bundle: input, pictures, scores, settings")
            saved = gr.File(label="Bundle", interactive=False, height=90)
            _on(button.click, self.save, chosen, saved, f"save_{self.kind}")
            given = gr.File(label="Open a bundle (.zip)", height=140)
            filled = [self.what, self.model, self.classes, self.methods, self.chances, self.result]
            _on(given.upload, self.open, given, [*filled, *self.earlier], f"open_{self.kind}")

    def read(self, given: Any) -> Input:
        """The input from what its component holds."""
        if self.kind == "text":
            return sentence_from(given)
        if not given:
            raise WhenceError("Choose a photo first, or use the sample.")
        return photo_from(self.uploads.content(_path(given), PHOTO_BYTES))

    def explain(
        self, model: str, given: Any, classes: Sequence[Any], names: Sequence[str]
    ) -> tuple[Any, ...]:
        """Probabilities, the explained classes, and what methods say of them."""
        what = self.read(given)
        seen = self.desk.look(model, what)
        wanted = self.desk.classes(model, what, classes, _FIRST_CLASSES)
        answers = self.desk.explain(model, what, wanted, names)
        update = gr.update(choices=self._class_choices(model), value=wanted)
        return views.chances(seen), update, _result(answers, seen.prepared.shown[0])

    def afresh(self, model: str, given: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """The same for another input or model; what was computed for the earlier one goes."""
        gone = self._gone()
        if not given:
            return "", gr.update(choices=self._class_choices(model), value=[]), "", *gone
        return *self.explain(model, given, [], names or [METHOD]), *gone

    def sample(self, sample: Any, model: str, names: Sequence[str]) -> tuple[Any, ...]:
        """The same for a sample."""
        given = sample
        if self.kind == "image":
            sample = self.uploads.keep(sample.name, sample.read_bytes())
            given = {"path": sample}
        return sample, *self.afresh(model, given, names)

    @staticmethod
    def _gone() -> tuple[Any, ...]:
        """Curves, heads and the choice of tokens, as they are at first."""
        return "", "", gr.update(choices=_FIRST_TOKEN, value=0)

    def faithful(
        self,
        model: str,
        given: Any,
        classes: Sequence[Any],
        names: Sequence[str],
        progress: Any = gr.Progress(),  # noqa: B008
    ) -> str:
        """Curves of chosen methods and classes."""
        what = self.read(given)
        seen = self.desk.look(model, what)
        wanted = self.desk.classes(model, what, classes)

        def tell(done: int, total: int) -> None:
            progress((done, total), desc="Removing parts", unit="passes")

        found = self.desk.faithful(model, what, wanted, names, tell)
        failed = [a for a in self.desk.explain(model, what, wanted, names) if a.error]
        return views.faithfulness(found, _photo_of(seen.prepared.shown[0]), failed)

    def heads(self, model: str, given: Any, token: Any) -> tuple[Any, str]:
        """All heads, and the tokens that can be chosen."""
        what = self.read(given)
        found = self.desk.heads(model, what, _number(token))
        shown = self.desk.look(model, what).prepared.shown[0]
        choices = [(f"{at}: {name}", at) for at, name in enumerate(found.names)]
        return gr.update(choices=choices, value=found.token), views.heads(found, _photo_of(shown))

    def save(self, model: str, given: Any, classes: Sequence[Any], names: Sequence[str]) -> str:
        """A bundle of it all."""
        what = self.read(given)
        seen = self.desk.look(model, what)
        wanted = self.desk.classes(model, what, classes, _FIRST_CLASSES)
        answers = self.desk.explain(model, what, wanted, names)
        found = {a.method: a.explanation for a in answers if a.explanation is not None}
        if not found:
            raise WhenceError(answers[0].error)
        whole = bundle.Bundle(model, what, _photo_of(seen.prepared.shown[0]), found)
        return self.uploads.keep("whence.zip", bundle.pack(whole))

    def open(self, given: Any) -> tuple[Any, ...]:
        """What all components hold if a bundle is opened: its scores as they were saved."""
        if not given:
            raise WhenceError("Choose a bundle first.")
        found = bundle.unpack(self.uploads.content(_path(given), UPLOAD_BYTES))
        what = found.what
        if isinstance(what, Photo) != (self.kind == "image"):
            raise WhenceError("This bundle holds another kind of input: open it on the other tab.")
        offered = found.model in self.desk.names(self.kind)
        choices = self._class_choices(found.model)
        answers = [Answer(name, one) for name, one in found.explanations.items()]
        return (
            self.uploads.keep(f"photo.{what.ending}", what.content)
            if isinstance(what, Photo)
            else what.text,
            found.model if offered else gr.skip(),
            gr.update(choices=choices, value=found.classes) if offered else gr.update(value=[]),
            list(found.explanations),
            "" if offered else views.note(f"Made with the model {found.model}, not offered here."),
            _result(answers, found.shown),
            *self._gone(),
        )

    def _class_choices(self, model: str) -> list[tuple[str, int]]:
        loaded = self.desk.models.get(model)
        if loaded is None:
            return []
        named = loaded.class_names
        return [(named.get(i, f"class {i}"), i) for i in range(loaded.class_count)]


def _photo() -> Any:
    return gr.Image(
        label=f"Photo ({', '.join(FORMATS)})",
        sources=["upload", "clipboard"],
        type="filepath",
        height=320,
        buttons=[],
    )


def _text() -> Any:
    return gr.Textbox(
        label="Text", lines=5, max_lines=12, max_length=TEXT_CHARACTERS, submit_btn=False
    )


def _on(
    event: Any, work: Callable[..., Any], given: Any, out: Any, name: str | None = None
) -> None:
    """Call on an event with what the browser sent: everything is checked here, nothing by Gradio.

    One piece of work is done at a time, as it keeps all cores busy by itself.
    """
    event(
        _told(work),
        given,
        out,
        preprocess=False,
        api_name=name,
        api_visibility="public" if name else "private",
        concurrency_limit=1,
        concurrency_id="model",
    )


def _told(work: Callable[..., Any]) -> Callable[..., Any]:
    """What a user can put right is told in a sentence; anything else goes to the log."""

    @functools.wraps(work)
    def wrapped(*given: Any, **named: Any) -> Any:
        # What reports progress is found through the context of the request.
        context = contextvars.copy_context()
        try:
            return _worker.submit(context.run, work, *given, **named).result()
        except WhenceError as error:
            raise gr.Error(str(error), print_exception=False) from None
        except Exception:
            _log.exception("A request failed")
            raise gr.Error(
                "This could not be computed; the log of the server tells why.",
                print_exception=False,
            ) from None

    return wrapped


def _path(given: Any) -> Any:
    """Where a file lies, as Gradio tells it."""
    return given.get("path") if isinstance(given, dict) else None


def _result(answers: Sequence[Answer], shown: Any) -> str:
    photo = _photo_of(shown)
    return views.texts(answers) if photo is None else views.maps(photo, answers)


def _photo_of(shown: Any) -> Image.Image | None:
    return shown if isinstance(shown, Image.Image) else None


def _number(token: Any) -> int:
    try:
        return int(token)
    except (TypeError, ValueError):
        raise WhenceError(f"A token is chosen by its number, not by {str(token)[:40]!r}.") from None
