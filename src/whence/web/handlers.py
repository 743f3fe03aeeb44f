"""Handles the events of one tab: takes values from the browser, returns HTML and updates."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import gradio as gr

from whence._util.defaults import METHOD
from whence._util.progress import report_progress
from whence.errors import WhenceError
from whence.explanation import Photo
from whence.faithfulness import measure
from whence.web import detail_views, views
from whence.web.attention_heads import compute_head_attention
from whence.web.bundle import Bundle, pack_bundle
from whence.web.lanes import enter_slow_lane
from whence.web.limits import MAX_PHOTO_BYTES
from whence.web.method_cards import RECOMMENDED, TabKind, is_slow
from whence.web.service import (
    Choice,
    ExplanationService,
    MethodResult,
    Prediction,
    get_explanations,
)
from whence.web.uploads import UploadFolder
from whence.web.validation import PageInput, check_text, decode_photo

# This many of the most probable classes are explained if none are chosen.
_DEFAULT_CLASSES = 2
FIRST_TOKEN = [("0: first token", 0)]
NO_CLASS = ""
# The least probability that stands beside a class where one is chosen.
_LEAST_SHOWN = 0.001


class TabHandlers:
    """The handlers of the tab for one kind of input.

    Arguments are the values of components: `model` is a name, `value` a text or an uploaded file,
    `classes` and `names` are the chosen classes and methods, `against` is the class that they are
    explained against, or empty. Any of them may be forged.
    """

    def __init__(self, service: ExplanationService, uploads: UploadFolder, kind: TabKind) -> None:
        self.service, self.uploads, self.kind = service, uploads, kind

    def explain(
        self, model: str, value: object, classes: object, names: object, against: object = None
    ) -> tuple[object, ...]:
        """Probabilities, explained classes, explanations by each method, and the other class."""
        prediction = self.service.predict(model, self._read_input(value))
        choice = prediction.choose(classes, against, _DEFAULT_CLASSES)
        results = self.service.explain(prediction, choice, names)
        plain = self._explain_each(prediction, choice, [one.method for one in results])
        html = views.render_results(
            results, prediction.photo, plain, is_contrast=choice.against is not None
        )
        chosen, other = self._update_choice(self._rank_classes(prediction), choice)
        return views.render_probabilities(prediction), chosen, html, other

    def explain_new(self, model: str, value: object, names: object) -> tuple[object, ...]:
        """The same for a new input or model, and empty values for what belonged to the old one."""
        if not value:
            return self.clear(model)
        return *self.explain(model, value, [], names or [METHOD]), *_clear_details()

    def clear(self, model: object) -> tuple[object, ...]:
        """The same without an input."""
        classes = self.list_classes(model) if isinstance(model, str) else []
        chosen, other = self._update_choice(classes, Choice(()))
        return "", chosen, views.render_fragment("empty", self.kind), other, *_clear_details()

    def explain_sample(self, sample: Path | str, model: str, names: object) -> tuple[object, ...]:
        """The same for a sample photo or text, which comes first."""
        if isinstance(sample, str):
            return sample, *self.explain_new(model, sample, names)
        path = self.uploads.store(sample.name, sample.read_bytes())
        return path, *self.explain_new(model, {"path": path}, names)

    def measure_faithfulness(
        self,
        model: str,
        value: object,
        classes: object,
        names: object,
        against: object = None,
    ) -> str:
        """Deletion curves of chosen methods and classes."""
        prediction = self.service.predict(model, self._read_input(value))
        choice = prediction.choose(classes, against)
        results = self.service.explain(prediction, choice, self._add_peers(names))
        explanations = get_explanations(results)
        enter_slow_lane()
        faithfulness = measure(
            prediction.loaded,
            prediction.prepared,
            explanations,
            against=choice.against,
            progress=functools.partial(report_progress, "Removing parts"),
        )
        is_contrast = choice.against is not None
        photo = prediction.photo
        return detail_views.render_faithfulness(faithfulness, photo, results, is_contrast)

    def show_heads(self, model: str, value: object, token: object) -> tuple[object, str]:
        """The tokens that can be chosen, and the attention of one in all heads."""
        prediction = self.service.predict(model, self._read_input(value))
        number = _parse_token(token)
        attention = compute_head_attention(prediction.loaded, prediction.prepared, number)
        choices = [(f"{number}: {name}", number) for number, name in enumerate(attention.names)]
        update = gr.update(choices=choices, value=attention.token)
        return update, detail_views.render_heads(attention, prediction.photo)

    def save_bundle(
        self, model: str, value: object, classes: object, names: object, against: object = None
    ) -> str:
        """The path of a bundle with the input and its explanations."""
        page_input = self._read_input(value)
        prediction = self.service.predict(model, page_input)
        choice = prediction.choose(classes, against, _DEFAULT_CLASSES)
        explanations = get_explanations(self.service.explain(prediction, choice, names))
        seen = prediction.photo.crop if prediction.photo else None
        bundle = Bundle(model, page_input, seen, explanations, choice.against)
        return self.uploads.store("whence.zip", pack_bundle(bundle))

    def open_bundle(self, bundle: Bundle) -> tuple[object, ...]:
        """The values of all components for a bundle: its scores as they were saved."""
        model, note = bundle.model, ""
        choice = Choice(tuple(bundle.classes), bundle.against)
        chosen, other = self._update_choice(self.list_classes(model), choice)
        if bundle.model not in self.service.list_models(self.kind):
            model, chosen, other = gr.skip(), gr.update(value=[]), gr.update(value=NO_CLASS)
            note = views.render_fragment(
                "note", f"Made with the model {bundle.model}, not offered here."
            )
        results = [MethodResult(name, one) for name, one in bundle.explanations.items()]
        photo = Photo.from_crop(bundle.photo) if bundle.photo else None
        html = views.render_results(results, photo, is_contrast=bundle.against is not None)
        shown, names = self._show_input(bundle.page_input), list(bundle.explanations)
        return shown, model, chosen, names, note, html, other, *_clear_details()

    def list_classes(self, model: str) -> list[tuple[str, int]]:
        """The names and indices of a model's classes; none if it is not offered."""
        loaded = self.service.models.get(model)
        if loaded is None:
            return []
        names = loaded.class_names
        return [(names.get(i, f"class {i}"), i) for i in range(loaded.class_count)]

    def list_choices(
        self, model: object, classes: object, against: object
    ) -> tuple[object, object]:
        """Updates of the two fields of classes for a model; what was chosen in them stays."""
        names = self.list_classes(model) if isinstance(model, str) else []
        chosen = gr.update(choices=names, value=classes)
        return chosen, gr.update(choices=self.list_others(names), value=against)

    @staticmethod
    def list_others(classes: Sequence[tuple[str, int]]) -> list[tuple[str, int | str]]:
        """What the explained classes can be explained against: nothing, or a class."""
        return [("no other class", NO_CLASS), *classes]

    def _update_choice(
        self, classes: Sequence[tuple[str, int]], choice: Choice
    ) -> tuple[object, object]:
        """Updates of the two fields that hold the classes and the one they are compared with."""
        other = NO_CLASS if choice.against is None else choice.against
        chosen = gr.update(choices=list(classes), value=list(choice.classes))
        return chosen, gr.update(choices=self.list_others(classes), value=other)

    @staticmethod
    def _rank_classes(prediction: Prediction) -> list[tuple[str, int]]:
        """The classes for this input, the most probable first, with what chance they have."""
        return [
            (
                f"{one.name} {one.percent}" if (one.probability or 0) >= _LEAST_SHOWN else one.name,
                one.index,
            )
            for one in prediction.classes
        ]

    def _explain_each(
        self, prediction: Prediction, choice: Choice, names: Sequence[str]
    ) -> list[MethodResult]:
        """If classes are explained against another one: each of them by itself, where quick."""
        quick = [name for name in names if not is_slow(name)]
        if choice.against is None or not quick:
            return []
        classes = (*choice.classes, choice.against)
        return self.service.explain(prediction, Choice(classes), quick)

    def _add_peers(self, names: object) -> object:
        """Add the recommended methods to a single one, so that there is something to compare."""
        if not isinstance(names, list) or len(names) != 1:
            return names
        return list(dict.fromkeys([*names, *RECOMMENDED[self.kind]]))

    def _show_input(self, page_input: PageInput) -> str:
        """The value of the component that holds the input: a text, or the path of a photo."""
        if self.kind == "text":
            return page_input.text
        return self.uploads.store(f"photo.{page_input.extension}", page_input.content)

    def _read_input(self, value: object) -> PageInput:
        if self.kind == "text":
            return check_text(value)
        if not value:
            raise WhenceError("Choose a photo first, or use the sample.")
        return decode_photo(self.uploads.read(get_path(value), MAX_PHOTO_BYTES))


def _clear_details() -> tuple[object, ...]:
    """Initial values of curves, heads and the choice of tokens."""
    return "", "", gr.update(choices=FIRST_TOKEN, value=0)


def get_path(value: object) -> object:
    """The path of a file, from the value that Gradio sends for it."""
    return value.get("path") if isinstance(value, dict) else None


def _parse_token(token: object) -> int:
    try:
        return int(token)  # type: ignore[call-overload, no-any-return]  # anything may be sent
    except (TypeError, ValueError, OverflowError):
        raise WhenceError(f"A token is chosen by its number, not by {str(token)[:40]!r}.") from None
