"""Lays out the tab for language models with Gradio."""

from __future__ import annotations

import functools

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from whence.demo import PROMPTS
from whence.web import panel, views
from whence.web.events import connect
from whence.web.language_handlers import LanguageHandlers
from whence.web.limits import MAX_NEW_TOKENS, MAX_TEXT_CHARACTERS

_DEFAULT_TOKENS = 24
_SAMPLES = {f"Sample {number}": prompt for number, prompt in enumerate(PROMPTS, 1)}


class LanguageTab:
    """The components of the tab, connected to their handlers."""

    def __init__(self, handlers: LanguageHandlers) -> None:
        self.handlers = handlers
        with gr.Row(elem_classes="workbench"):
            with panel.add_panel("generation"):
                self.prompt = gr.Textbox(
                    label="Prompt",
                    placeholder="The beginning of a text, which the model continues.",
                    lines=4,
                    max_lines=8,
                    max_length=MAX_TEXT_CHARACTERS,
                    submit_btn=False,
                )
                samples = panel.add_samples(_SAMPLES)
                self._add_choices()
            with panel.add_stage("generation"):
                self.results = self._add_views()
        for event, name in ((self.button.click, "generate"), (self.prompt.submit, None)):
            connect(event, handlers.generate, self.request, self.results, name)
        for button, sample in samples.items():
            generate_sample = functools.partial(handlers.generate_sample, sample)
            inputs = [self.model, self.count, self.method]
            connect(button.click, generate_sample, inputs, [self.prompt, *self.results])

    @property
    def request(self) -> list[Component]:
        """The components that say what is asked for."""
        return [self.model, self.prompt, self.count, self.method]

    @property
    def work(self) -> dict[str, Component]:
        """What a reload of the page keeps."""
        names = ("model", "input", "count", "method")
        result, _, _, contrast = self.results
        results = {"html_result": result, "html_contrast": contrast}
        return {**dict(zip(names, self.request, strict=True)), **results}

    @property
    def bundle_fields(self) -> list[Block]:
        """What an opened zip file fills: the views, of which it selects one, and the components."""
        return [self.views, *self.request, *self.results]

    def _add_choices(self) -> None:
        self.model = panel.add_model(list(self.handlers.service.models))
        self.count = gr.Slider(
            1, MAX_NEW_TOKENS, value=_DEFAULT_TOKENS, step=1, label="Tokens to generate"
        )
        self.method = panel.add_method("generation")
        panel.add_all_methods("generation")
        self.button = panel.add_start("Generate")

    def _add_views(self) -> list[Component]:
        with gr.Tabs(elem_classes="views") as self.views:
            with gr.Tab("Explanation", id="explanation"):
                empty = views.render_fragment("empty", "generation")
                result = panel.add_output("result", empty)
            with gr.Tab("Why not another word") as view:
                contrast = self._add_contrast()
                inputs, outputs = [*self.request, contrast[0]], contrast[:2]
                connect(view.select, self.handlers.list_tokens, inputs, outputs)
            with gr.Tab("Files"):
                self._add_files()
        return [result, *contrast]

    def _add_contrast(self) -> list[Component]:
        gr.HTML(views.render_fragment("about_contrast"), apply_default_css=False)
        with gr.Row(elem_classes="ask"):
            token = gr.Dropdown([], label="Generated token", min_width=160)
            other = gr.Dropdown(
                [], label="Rather than", allow_custom_value=True, value="", min_width=160
            )
            button = gr.Button("Explain the difference")
        result = panel.add_output("details")
        request = [*self.request, token]
        connect(token.input, self.handlers.list_others, request, [other])
        connect(button.click, self.handlers.contrast, [*request, other], [result], "contrast")
        return [token, other, result]

    def _add_files(self) -> None:
        gr.HTML(views.render_fragment("about_generation_files"), apply_default_css=False)
        button = gr.Button("Make a zip file")
        saved = gr.File(label="Zip file", interactive=False, height=90, elem_classes="saved")
        connect(button.click, self.handlers.save, self.request, [saved], "save_generation")
        self.upload = panel.add_upload()
