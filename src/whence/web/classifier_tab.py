"""Lays out the tab of one kind of classifier, of photos or texts, with Gradio."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component
from gradio.events import Dependency

from whence.demo import PHOTO, SENTENCES
from whence.web import panel, views
from whence.web.events import connect
from whence.web.handlers import FIRST_TOKEN, NO_CLASS, TabHandlers
from whence.web.limits import MAX_CLASSES, MAX_TEXT_CHARACTERS
from whence.web.method_cards import TabKind
from whence.web.validation import FORMATS

_SAMPLES: dict[TabKind, dict[str, Path | str]] = {
    "image": {"Use the sample photo": PHOTO},
    "text": {f"Sample {n}": sentence for n, sentence in enumerate(SENTENCES, 1)},
}


class ClassifierTab:
    """The components of one tab, connected to their handlers."""

    def __init__(self, handlers: TabHandlers) -> None:
        self.handlers, self.kind = handlers, handlers.kind
        with gr.Row(elem_classes="workbench"):
            with panel.add_panel(self.kind):
                self.input, new_input = _add_photo() if self.kind == "image" else _add_text()
                samples = panel.add_samples(_SAMPLES[self.kind])
                self._add_choices()
            with panel.add_stage(self.kind):
                self.probabilities = panel.add_output("probabilities-place")
                self._add_views()
        results = [self.probabilities, self.classes, self.result, self.against]
        everything = [*results, *self.details]
        name = f"explain_{self.kind}"
        connect(self.button.click, handlers.explain, self.request, results, name)
        # What was compared is of the methods and classes before.
        self.button.click(None, None, self.details[:1], js="() => ['']", api_visibility="private")
        for event in (new_input, self.model.input):
            connect(event, handlers.explain_new, [self.model, self.input, self.methods], everything)
        if isinstance(self.input, gr.Image):
            connect(self.input.clear, handlers.clear, [self.model], everything)
        for button, sample in samples.items():
            explain_sample = functools.partial(handlers.explain_sample, sample)
            outputs = [self.input, *everything]
            connect(button.click, explain_sample, [self.model, self.methods], outputs)

    @property
    def request(self) -> list[Component]:
        """The components that say what is asked for."""
        return [self.model, self.input, self.classes, self.methods, self.against]

    @property
    def work(self) -> dict[str, Component]:
        """What a reload of the page keeps."""
        curves, heads, _ = self.details
        names = ("model", "input", "classes", "methods", "against")
        results = {"html_probabilities": self.probabilities, "html_result": self.result}
        return {
            **dict(zip(names, self.request, strict=True)),
            **results,
            "html_curves": curves,
            "html_heads": heads,
        }

    @property
    def bundle_fields(self) -> list[Block]:
        """What an opened bundle fills: the views, of which it selects one, and the components."""
        inputs = [self.input, self.model, self.classes, self.methods]
        return [self.views, *inputs, self.probabilities, self.result, self.against, *self.details]

    def list_classes_after(self, reload: Dependency) -> None:
        """After a reload, list the classes of the model that is then chosen."""
        if len(self.handlers.service.list_models(self.kind)) > 1:
            fields = [self.classes, self.against]
            connect(reload.then, self.handlers.list_choices, [self.model, *fields], fields)

    def _add_choices(self) -> None:
        models = self.handlers.service.list_models(self.kind)
        classes = self.handlers.list_classes(models[0])
        self.model = panel.add_model(models)
        self.methods = panel.add_methods(self.kind)
        panel.add_all_methods(self.kind)
        self.classes = gr.Dropdown(
            classes,
            value=[],
            multiselect=True,
            max_choices=MAX_CLASSES,
            label=f"Classes (up to {MAX_CLASSES}; type to find one)",
            min_width=0,
        )
        self.against = gr.Dropdown(
            self.handlers.list_others(classes),
            value=NO_CLASS,
            label="Rather than (what tells it from this class?)",
            min_width=0,
        )
        self.button = panel.add_start("Explain")

    def _add_views(self) -> None:
        with gr.Tabs(elem_classes="views") as self.views:
            with gr.Tab("Explanation", id="explanation"):
                self.result = panel.add_output("result", views.render_fragment("empty", self.kind))
                gr.HTML(views.render_controls(self.kind), apply_default_css=False)
            with gr.Tab("Compare"):
                curves = self._add_faithfulness()
            with gr.Tab("Heads"):
                heads = self._add_heads()
            with gr.Tab("Files"):
                self._add_bundles()
        self.details = [curves, *heads]

    def _add_faithfulness(self) -> Component:
        with gr.Row(elem_classes="ask"):
            button = gr.Button(f"Compare on my {_name(self.kind)}", elem_classes="run")
            gr.HTML(views.render_fragment("about_faithfulness"), apply_default_css=False)
        curves = panel.add_output("details")
        name = f"faithful_{self.kind}"
        connect(button.click, self.handlers.measure_faithfulness, self.request, [curves], name)
        return curves

    def _add_heads(self) -> list[Component]:
        with gr.Row(elem_classes="ask"):
            token = gr.Dropdown(FIRST_TOKEN, value=0, label="Token", min_width=160)
            button = gr.Button("Show all heads", elem_classes="run")
        heads = panel.add_output("details")
        request, results = [self.model, self.input, token], [token, heads]
        connect(button.click, self.handlers.show_heads, request, results, f"heads_{self.kind}")
        connect(token.input, self.handlers.show_heads, request, results)
        return [heads, token]

    def _add_bundles(self) -> None:
        gr.HTML(views.render_fragment("about_bundles"), apply_default_css=False)
        button = gr.Button("Make a bundle: input, pictures, scores, settings")
        saved = gr.File(label="Bundle", interactive=False, height=90, elem_classes="saved")
        name = f"save_{self.kind}"
        connect(button.click, self.handlers.save_bundle, self.request, [saved], name)
        self.upload = panel.add_upload()


def _name(kind: TabKind) -> str:
    return "photo" if kind == "image" else "text"


def _add_photo() -> tuple[Component, Callable[..., object]]:
    """Add the field for a photo; returns it and the event of a new photo."""
    photo = gr.Image(
        label="Photo",
        placeholder=f"Drop a photo here, or click\n{', '.join(FORMATS)}",
        sources=["upload", "clipboard"],
        type="filepath",
        height=170,
        buttons=[],
    )
    return photo, photo.upload


def _add_text() -> tuple[Component, Callable[..., object]]:
    """Add the field for a text; returns it and the event of a new text."""
    text = gr.Textbox(
        label="Text",
        placeholder="Type or paste a text, then press Explain.",
        lines=4,
        max_lines=8,
        max_length=MAX_TEXT_CHARACTERS,
        submit_btn=False,
    )
    return text, text.submit
