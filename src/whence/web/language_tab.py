"""Lays out the tab for language models with Gradio."""

from __future__ import annotations

import functools

import gradio as gr

from whence._util.defaults import METHOD
from whence.demo import PROMPTS
from whence.web.events import connect
from whence.web.language_handlers import LanguageHandlers
from whence.web.limits import MAX_NEW_TOKENS, MAX_TEXT_CHARACTERS
from whence.web.service import list_methods

_DEFAULT_TOKENS = 24
_HINT = (
    "The beginning of a text. The model continues it, always with the most probable token. Then "
    "point at a generated word, or tap it, to see what it came from."
)


class LanguageTab:
    """The components of the tab, connected to their handlers."""

    def __init__(self, handlers: LanguageHandlers) -> None:
        self.handlers = handlers
        with gr.Row():
            with gr.Column(min_width=280):
                self.prompt = gr.Textbox(
                    label="Prompt",
                    placeholder=_HINT,
                    lines=4,
                    max_lines=12,
                    max_length=MAX_TEXT_CHARACTERS,
                    submit_btn=False,
                )
                with gr.Row():
                    samples = {
                        gr.Button(f"Sample {n}", size="sm", min_width=80): prompt
                        for n, prompt in enumerate(PROMPTS, 1)
                    }
            with gr.Column(min_width=280):
                self._add_choices()
        self.result = gr.HTML(apply_default_css=False)
        self.request = [self.model, self.prompt, self.count, self.method]
        results = [self.result, *self._add_contrast()]
        for event, name in ((self.button.click, "generate"), (self.prompt.submit, None)):
            connect(event, handlers.generate, self.request, results, name)
        for button, sample in samples.items():
            generate_sample = functools.partial(handlers.generate_sample, sample)
            inputs = [self.model, self.count, self.method]
            connect(button.click, generate_sample, inputs, [self.prompt, *results])
        self._add_files()

    def _add_choices(self) -> None:
        models = list(self.handlers.service.models)
        with gr.Row():
            self.model = gr.Dropdown(
                models, value=models[0], label="Model", filterable=False, min_width=200
            )
            self.method = gr.Dropdown(
                list_methods("text"), value=METHOD, label="Method", min_width=200
            )
        self.count = gr.Slider(
            1, MAX_NEW_TOKENS, value=_DEFAULT_TOKENS, step=1, label="Tokens to generate"
        )
        self.button = gr.Button("Generate", variant="primary")

    def _add_contrast(self) -> list[gr.components.Component]:
        with gr.Accordion("Why this word and not another?", open=False):
            with gr.Row():
                token = gr.Dropdown([], label="Generated token", min_width=200)
                other = gr.Dropdown(
                    [], label="Rather than", allow_custom_value=True, value="", min_width=200
                )
            button = gr.Button("Explain the difference")
            result = gr.HTML(apply_default_css=False)
            request = [*self.request, token]
            connect(token.input, self.handlers.list_others, request, [other])
            inputs = [*request, other]
            connect(button.click, self.handlers.contrast, inputs, [result], "contrast")
        return [token, other, result]

    def _add_files(self) -> None:
        with gr.Accordion("Save", open=False):
            button = gr.Button("Make a zip file: a page to point at, tables, scores")
            saved = gr.File(label="Zip file", interactive=False, height=90)
            connect(button.click, self.handlers.save, self.request, [saved], "save_generation")
