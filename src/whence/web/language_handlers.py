"""Handles the events of the tab for language models: takes values, returns HTML and updates."""

from __future__ import annotations

import gradio as gr

from whence.errors import WhenceError
from whence.web import views
from whence.web.language import GeneratedText, LanguageService, check_method
from whence.web.language_bundle import GenerationSettings, pack_generation
from whence.web.uploads import UploadFolder


class LanguageHandlers:
    """The handlers of the tab for language models.

    Arguments are the values of components: the name of a model, a prompt, how many tokens to
    generate, the name of a method. Any of them may be forged.
    """

    def __init__(self, service: LanguageService, uploads: UploadFolder) -> None:
        self.service, self.uploads = service, uploads

    def generate(
        self, model: object, prompt: object, count: object, method: object
    ) -> tuple[object, ...]:
        """The generated text, and values for the question why one word and not another."""
        text = self.service.generate(model, prompt, count, method)
        tokens = gr.update(choices=text.list_tokens(), value=0)
        return views.render_generation(text.generation), tokens, _list_others(text, 0), ""

    def generate_sample(
        self, sample: str, model: object, count: object, method: object
    ) -> tuple[object, ...]:
        """The same for a sample, which comes first."""
        return sample, *self.generate(model, sample, count, method)

    def list_tokens(
        self, model: object, prompt: object, count: object, method: object, number: object
    ) -> tuple[object, object]:
        """The generated tokens and what might stand instead, unless one is already chosen."""
        if number is not None or not prompt:
            return gr.skip(), gr.skip()
        text = self.service.generate(model, prompt, count, method)
        return gr.update(choices=text.list_tokens(), value=0), _list_others(text, 0)

    def list_others(
        self, model: object, prompt: object, count: object, method: object, number: object
    ) -> object:
        """The tokens that might have been generated instead of one."""
        return _list_others(self.service.generate(model, prompt, count, method), number)

    def contrast(
        self,
        model: object,
        prompt: object,
        count: object,
        method: object,
        number: object,
        other: object,
    ) -> str:
        """What spoke for a generated token rather than for another one."""
        text = self.service.generate(model, prompt, count, method)
        return views.render_contrast(text.contrast(number, other, check_method(method)))

    def save(self, model: object, prompt: object, count: object, method: object) -> str:
        """The path of a zip file with a page and all scores."""
        text = self.service.generate(model, prompt, count, method)
        settings = GenerationSettings(model, prompt, count, method)
        return self.uploads.store("whence.zip", pack_generation(text.generation, settings))

    def open(self, settings: GenerationSettings) -> tuple[object, ...]:
        """The values of all components for a zip file: its text is generated again."""
        if settings.model not in list(self.service.models):
            raise WhenceError(
                f"The model '{str(settings.model)[:80]}', which generated this text, is not "
                f"offered here: open generation.html in the zip file."
            )
        request = settings.model, settings.prompt, settings.count, settings.method
        return *request, *self.generate(*request)


def _list_others(text: GeneratedText, number: object) -> object:
    return gr.update(choices=text.list_others(number), value="")
