"""Lays out the page with Gradio: tabs for photos, texts and language models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import gradio as gr
from gradio.components import Component

from whence._util.defaults import METHOD
from whence.demo import PHOTO, SENTENCES
from whence.inputs.sources import Kind
from whence.web import views
from whence.web.events import connect
from whence.web.handlers import FIRST_TOKEN, NO_CLASS, TabHandlers
from whence.web.language import LanguageService
from whence.web.language_handlers import LanguageHandlers
from whence.web.language_tab import LanguageTab
from whence.web.limits import MAX_CLASSES, MAX_METHODS, MAX_TEXT_CHARACTERS
from whence.web.service import ExplanationService, list_methods
from whence.web.uploads import UploadFolder
from whence.web.validation import FORMATS

_TABS: dict[str, Kind] = {"Photo": "image", "Text": "text"}
_SAMPLES: dict[Kind, dict[str, Path | str]] = {
    "image": {"Use the sample photo": PHOTO},
    "text": {f"Sample {n}": sentence for n, sentence in enumerate(SENTENCES, 1)},
}


def build_page(service: ExplanationService, uploads: UploadFolder) -> gr.Blocks:
    """Build the page for the models of a service."""
    # Gradio deletes uploads an hour later.
    page = gr.Blocks(title="whence", analytics_enabled=False, delete_cache=(600, 3600))
    with page:
        gr.HTML(views.render_fragment("heading"))
        with gr.Tabs():
            for title, kind in _TABS.items():
                with gr.Tab(title):
                    _Tab(TabHandlers(service, uploads, kind))
            language = LanguageService(service.models)
            if language.models:
                with gr.Tab("Language model"):
                    LanguageTab(LanguageHandlers(language, uploads))
    return page


class _Tab:
    """The components of one tab, connected to their handlers."""

    def __init__(self, handlers: TabHandlers) -> None:
        self.handlers, kind = handlers, handlers.kind
        with gr.Row():
            with gr.Column(min_width=280):
                self.input, new_input = _add_photo() if kind == "image" else _add_text()
                with gr.Row():
                    samples = {
                        gr.Button(name, size="sm", min_width=80): sample
                        for name, sample in _SAMPLES[kind].items()
                    }
            with gr.Column(min_width=280):
                self._add_choices()
        self.result = gr.HTML(apply_default_css=False)
        gr.HTML(views.render_controls(kind), apply_default_css=False)
        request = [self.model, self.input, self.classes, self.methods, self.against]
        results = [self.probabilities, self.classes, self.result, self.against]
        connect(self.button.click, handlers.explain, request, results, f"explain_{kind}")
        self.details = [*self._add_faithfulness(request), *self._add_heads()]
        self._add_bundles(request)
        changed, everything = [self.model, self.input, self.methods], [*results, *self.details]
        for event in (new_input, self.model.input):
            connect(event, handlers.explain_new, changed, everything)
        for button, sample in samples.items():
            explain_sample = functools.partial(handlers.explain_sample, sample)
            outputs = [self.input, *everything]
            connect(button.click, explain_sample, [self.model, self.methods], outputs)

    def _add_choices(self) -> None:
        models = self.handlers.service.list_models(self.handlers.kind)
        names = list_methods(self.handlers.kind)
        classes = self.handlers.list_classes(models[0])
        others = self.handlers.list_others(models[0])
        with gr.Row():
            self.model = gr.Dropdown(
                models, value=models[0], label="Model", filterable=False, min_width=200, scale=3
            )
            label = f"Methods (up to {MAX_METHODS})"
            self.methods = _add_several(names, [METHOD], MAX_METHODS, label)
        self.probabilities = gr.HTML(apply_default_css=False)
        with gr.Row():
            label = f"Classes (up to {MAX_CLASSES}; the most probable if none)"
            self.classes = _add_several(classes, [], MAX_CLASSES, label)
            self.against = gr.Dropdown(
                others, value=NO_CLASS, label="Rather than", min_width=200, scale=2
            )
        self.button = gr.Button("Explain", variant="primary")

    def _add_faithfulness(self, request: Sequence[Component]) -> list[Component]:
        with gr.Accordion("Is it faithful?", open=False):
            gr.HTML(views.render_fragment("about_faithfulness"), apply_default_css=False)
            button = gr.Button("Remove parts, and watch the class")
            curves = gr.HTML(apply_default_css=False)
            name = f"faithful_{self.handlers.kind}"
            connect(button.click, self.handlers.measure_faithfulness, request, [curves], name)
        return [curves]

    def _add_heads(self) -> list[Component]:
        with gr.Accordion("What do the heads attend to?", open=False):
            token = gr.Dropdown(FIRST_TOKEN, value=0, label="Token")
            button = gr.Button("Show all heads")
            heads = gr.HTML(apply_default_css=False)
            request, results = [self.model, self.input, token], [token, heads]
            name = f"heads_{self.handlers.kind}"
            connect(button.click, self.handlers.show_heads, request, results, name)
            connect(token.input, self.handlers.show_heads, request, results)
        return [heads, token]

    def _add_bundles(self, request: Sequence[Component]) -> None:
        kind = self.handlers.kind
        with gr.Accordion("Save and open", open=False):
            button = gr.Button("Make a bundle: input, pictures, scores, settings")
            saved = gr.File(label="Bundle", interactive=False, height=90)
            connect(button.click, self.handlers.save_bundle, request, [saved], f"save_{kind}")
            upload = gr.File(label="Open a bundle (.zip)", height=140)
            inputs = [self.input, self.model, self.classes, self.methods]
            outputs = [*inputs, self.probabilities, self.result, self.against, *self.details]
            connect(upload.upload, self.handlers.open_bundle, [upload], outputs, f"open_{kind}")


def _add_several(
    choices: Sequence[str | tuple[str, int]], value: list[str], most: int, label: str
) -> gr.Dropdown:
    """Add a field in which several can be chosen."""
    return gr.Dropdown(
        choices,
        value=value,
        multiselect=True,
        max_choices=most,
        label=label,
        min_width=200,
        scale=3,
    )


def _add_photo() -> tuple[Component, Callable[..., object]]:
    """Add the field for a photo; returns it and the event of a new photo."""
    label = f"Photo ({', '.join(FORMATS)})"
    photo = gr.Image(
        label=label, sources=["upload", "clipboard"], type="filepath", height=320, buttons=[]
    )
    return photo, photo.input


def _add_text() -> tuple[Component, Callable[..., object]]:
    """Add the field for a text; returns it and the event of a new text."""
    text = gr.Textbox(
        label="Text", lines=5, max_lines=12, max_length=MAX_TEXT_CHARACTERS, submit_btn=False
    )
    return text, text.submit
