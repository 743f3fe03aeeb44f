"""Lays out the page with Gradio: a heading, and a tab for photos, texts and language models."""

from __future__ import annotations

import gradio as gr

from whence.web import panel, views
from whence.web.classifier_tab import ClassifierTab
from whence.web.handlers import TabHandlers
from whence.web.language import LanguageService
from whence.web.language_handlers import LanguageHandlers
from whence.web.language_tab import LanguageTab
from whence.web.method_cards import TabKind
from whence.web.opening import BundleOpening
from whence.web.service import ExplanationService
from whence.web.uploads import UploadFolder

_TABS: dict[str, TabKind] = {"Photo": "image", "Text": "text"}


def build_page(service: ExplanationService, uploads: UploadFolder) -> gr.Blocks:
    """Build the page for the models of a service."""
    # Gradio deletes uploads an hour later.
    page = gr.Blocks(
        title="whence", analytics_enabled=False, delete_cache=(600, 3600), fill_width=True
    )
    with page:
        gr.HTML(views.render_fragment("heading"), apply_default_css=False)
        with gr.Tabs(elem_classes="kinds") as kinds:
            classifiers: dict[TabKind, ClassifierTab] = {}
            for title, kind in _TABS.items():
                with gr.Tab(title, id=kind):
                    tab = classifiers[kind] = ClassifierTab(TabHandlers(service, uploads, kind))
                    tab.list_classes_after(panel.keep_work(page, kind, tab.work))
            language, generation = LanguageService(service.models), None
            if language.models:
                with gr.Tab("Language model", id="generation"):
                    generation = LanguageTab(LanguageHandlers(language, uploads))
                    panel.keep_work(page, "generation", generation.work)
        BundleOpening(uploads, kinds, classifiers, generation)
        page.load(None, js="() => window.whence.followAddress()", api_visibility="private")
    return page
