"""Pieces that all tabs share: the panel of settings, the stage of results, cards of methods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import gradio as gr
from gradio.components import Component
from gradio.events import Dependency

from whence._util.defaults import METHOD
from whence.web import views
from whence.web.events import connect_cancel
from whence.web.limits import MAX_METHODS
from whence.web.method_cards import WHY_RECOMMENDED, CardKind, list_cards

S = TypeVar("S")


@contextmanager
def add_panel(kind: CardKind) -> Iterator[None]:
    """Add the panel that holds the input and the settings: beside the results, or a sheet."""
    with gr.Column(elem_classes="settings", elem_id=f"panel-{kind}", min_width=0):
        yield


@contextmanager
def add_stage(kind: CardKind) -> Iterator[None]:
    """Add the place of the results; on a phone, a bar above it opens the panel."""
    with gr.Column(elem_classes="stage", min_width=0):
        gr.HTML(views.render_fragment("bar", kind), apply_default_css=False, elem_classes="bar")
        yield


def add_samples(samples: Mapping[str, S]) -> dict[gr.Button, S]:
    """Add a button for each sample."""
    with gr.Row(elem_classes="samples"):
        return {
            gr.Button(name, size="sm", min_width=80, elem_classes="sample"): sample
            for name, sample in samples.items()
        }


def add_model(models: Sequence[str]) -> gr.Dropdown:
    """Add the choice of a model."""
    return gr.Dropdown(
        models,
        value=models[0],
        label="Model",
        filterable=False,
        min_width=0,
        elem_classes="model",
    )


def add_methods(kind: CardKind) -> gr.CheckboxGroup:
    """Add a card for each method, of which several can be chosen."""
    label = f"Methods (up to {MAX_METHODS})"
    return gr.CheckboxGroup(list_cards(kind), value=[METHOD], label=label, elem_classes="cards")


def add_method(kind: CardKind) -> gr.Radio:
    """Add a card for each method, of which one can be chosen."""
    return gr.Radio(list_cards(kind), value=METHOD, label="Method", elem_classes="cards")


def add_all_methods(kind: CardKind) -> None:
    """Add the button that shows the cards of all methods, and why three come first."""
    html = views.render_fragment("all_methods", WHY_RECOMMENDED[kind], len(list_cards(kind)))
    gr.HTML(html, apply_default_css=False)


def add_upload() -> gr.File:
    """Add the field in which a bundle is opened."""
    return gr.File(label="Open a bundle (.zip)", height=140)


def add_output(name: str, value: str = "") -> gr.HTML:
    """Add a place for HTML that a handler returns."""
    return gr.HTML(value, apply_default_css=False, elem_classes=name)


def add_start(name: str) -> gr.Button:
    """Add the button that starts the work, and beside it, while it runs, one that cancels it."""
    with gr.Row(elem_classes="start"):
        start = gr.Button(name, variant="primary", elem_classes="go", min_width=0, scale=3)
        cancel = gr.Button("Cancel", elem_classes="cancel", min_width=0, scale=1)
    connect_cancel(cancel.click)
    return start


def keep_work(page: gr.Blocks, kind: CardKind, parts: Mapping[str, Component]) -> Dependency:
    """Keep the values of components in the visitor's browser, and show them after a reload.

    The server takes no part in it. `parts` are settings, which also stand in the address, the
    ``input``, and results, whose names begin with ``html_``. Returns the event of a reload.
    """
    names, components = json.dumps(list(parts)), list(parts.values())
    changes = [one.change for one in components]  # type: ignore[attr-defined]  # added at run time
    remember = f"(...values) => {{ window.whence.remember('{kind}', {names}, values); }}"
    gr.on(changes, None, components, None, js=remember, api_visibility="private")
    offered = parts["model"]
    models = json.dumps(
        [one for _, one in offered.choices] if isinstance(offered, gr.Dropdown) else []
    )
    restore = f"() => window.whence.restore('{kind}', {names}, {models})"
    return page.load(None, None, components, js=restore, api_visibility="private")
