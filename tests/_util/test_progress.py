"""Watchers are told how far work has come, and may end it."""

import io
import sys

import pytest
import torch

from whence import Explainer
from whence._util.progress import bar, name_work, watch
from whence.models import load


class Watcher:
    def __init__(self, most=None):
        self.steps, self.checks, self.most = [], 0, most

    def report(self, doing, done, total):
        self.steps.append((doing, done, total))

    def check(self):
        self.checks += 1
        if self.most is not None and self.checks > self.most:
            raise KeyboardInterrupt


def test_the_outermost_bar_of_several_steps_is_reported():
    watcher = Watcher()
    with watch(watcher), name_work("rise"), bar("photos", 1) as one, bar("masks", 4) as advance:
        with bar("inner", 9) as inner:
            inner(9)
        advance(3)
        advance(1)
        one(1)
    assert watcher.steps == [("rise: masks", done, 4) for done in (0, 3, 4)]


def test_what_holds_another_bar_up_is_reported_too():
    watcher = Watcher()
    with watch(watcher), bar("photos", 4) as advance:
        advance(1)
        with bar("compiling", 2, beside=True) as inner:
            inner(1)
        advance(1)
    told = [("photos", 0, 4), ("photos", 1, 4), ("compiling", 0, 2), ("compiling", 1, 2)]
    assert watcher.steps == [*told, ("photos", 2, 4)]


def test_bars_beside_each_other_are_drawn_in_one_display(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with bar("photos", 4) as advance, bar("compiling", 2, beside=True) as inner:
        inner(1)
        advance(1)
    assert "photos" in shown.getvalue()
    assert "compiling" in shown.getvalue()


@pytest.fixture(scope="module")
def explainer(image_model):
    return Explainer(load(image_model).model.float())


@pytest.mark.parametrize(
    ("method", "total"),
    [
        ({"method": "occlusion"}, 16),
        ({"method": "rise", "masks": 30}, 30),
        ({"method": "integrated_gradients", "steps": 8, "classes": [0, 1]}, 16),
        ({"method": "smoothgrad", "samples": 5}, 5),
        ({"method": "value_zeroing"}, 17),
        ({"method": "search", "budget": 4}, None),
        ({"method": "vit_cx"}, None),
        ({"method": "attention_flow"}, None),
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) else "",
)
def test_methods_of_many_passes_report_every_step(explainer, method, total):
    watcher = Watcher()
    with watch(watcher):
        explainer.explain(torch.randn(1, 3, 32, 32), memory=0.001, **method)
    done = [step[1] for step in watcher.steps]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == watcher.steps[-1][2] == (total or done[-1]) > 1


def test_a_watcher_ends_a_single_pass_and_the_model_is_as_before(explainer):
    inputs, before = torch.randn(1, 3, 32, 32), dict(vars(explainer.model))
    expected = explainer.explain(inputs, 1).scores
    with pytest.raises(KeyboardInterrupt), watch(Watcher(most=20)):
        explainer.explain(inputs, 1)
    assert vars(explainer.model) == before
    assert torch.equal(explainer.explain(inputs, 1).scores, expected)
