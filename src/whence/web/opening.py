"""Opens a bundle on the tab that it belongs to, whichever tab it was dropped on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gradio as gr

from whence.errors import WhenceError
from whence.web import language_bundle
from whence.web.bundle import read_settings, unpack_bundle
from whence.web.classifier_tab import ClassifierTab
from whence.web.events import connect
from whence.web.handlers import get_path
from whence.web.language_bundle import GenerationSettings
from whence.web.language_tab import LanguageTab
from whence.web.limits import MAX_UPLOAD_BYTES
from whence.web.method_cards import TabKind
from whence.web.uploads import UploadFolder


class BundleOpening:
    """Opens bundles of all tabs.

    Args:
        uploads: The folder of uploads.
        kinds: The tabs of the page, of which it selects one.
        classifiers: The tabs of classifiers, by the kind of their input.
        language: The tab of language models, if there is one.
    """

    def __init__(
        self,
        uploads: UploadFolder,
        kinds: gr.Tabs,
        classifiers: Mapping[TabKind, ClassifierTab],
        language: LanguageTab | None,
    ) -> None:
        self.uploads, self.classifiers, self.language = uploads, classifiers, language
        self.tabs: dict[str, ClassifierTab | LanguageTab] = dict(classifiers.items())
        if language is not None:
            self.tabs["generation"] = language
        uploaded = [tab.upload for tab in self.tabs.values()]
        opened = [one for tab in self.tabs.values() for one in tab.bundle_fields]
        for number, upload in enumerate(uploaded):
            name = None if number else "open"
            connect(upload.upload, self.open, [upload], [kinds, *opened, *uploaded], name)

    def open(self, value: object) -> tuple[object, ...]:
        """The selected tab, the values of the components of all tabs, and no uploads."""
        if not value:
            raise WhenceError("Choose a bundle first.")
        content = self.uploads.read(get_path(value), MAX_UPLOAD_BYTES)
        settings = read_settings(content)
        if settings.get("format") == language_bundle.FORMAT:
            if self.language is None:
                raise WhenceError("This page offers no language model: open generation.html.")
            return self._fill(
                "generation",
                self.language.handlers.open(GenerationSettings.from_settings(settings)),
            )
        bundle = unpack_bundle(content)
        kind = bundle.page_input.kind
        tab = next(tab for name, tab in self.classifiers.items() if name == kind)
        return self._fill(kind, tab.handlers.open_bundle(bundle))

    def _fill(self, kind: str, values: Sequence[object]) -> tuple[object, ...]:
        """Values for one tab, on its first view; the other tabs stay as they are."""
        filled: list[object] = [gr.Tabs(selected=kind)]
        for name, tab in self.tabs.items():
            if name == kind:
                filled += [gr.Tabs(selected="explanation"), *values]
            else:
                filled += [gr.skip()] * len(tab.bundle_fields)
        return *filled, *[None] * len(self.tabs)
