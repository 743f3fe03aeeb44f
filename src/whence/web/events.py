"""Connects events of Gradio components to handlers, which run one at a time in one thread."""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import gradio as gr
from gradio.components import Component

from whence.errors import WhenceError

P = ParamSpec("P")
R = TypeVar("R")

# One thread runs all handlers: torch keeps memory for every thread that ever computed.
_worker = ThreadPoolExecutor(1, "whence")
_log = logging.getLogger("whence.web")


def connect(
    event: Callable[..., object],
    handler: Callable[..., object],
    inputs: Sequence[Component],
    outputs: Sequence[Component],
    api_name: str | None = None,
) -> None:
    """Call a handler with the values of inputs on an event such as ``button.click``.

    Handlers check all values themselves, so Gradio does not preprocess them. One event is handled
    at a time, as it keeps all cores busy by itself. Programs may call it if it has an `api_name`.
    """
    # Progress and errors cover results, not the fields in which a mistake is put right.
    results = [one for one in outputs if isinstance(one, gr.HTML | gr.File)]
    event(
        _run_in_worker(handler),
        list(inputs),
        list(outputs),
        preprocess=False,
        api_name=api_name,
        api_visibility="public" if api_name else "private",
        show_progress_on=results or None,
        concurrency_limit=1,
        concurrency_id="model",
    )


def _run_in_worker(handler: Callable[P, R]) -> Callable[P, R]:
    """Run a handler in the worker thread. Users see a WhenceError; other errors go to the log."""

    @functools.wraps(handler)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # Gradio finds the progress bar through the context of the request.
        context = contextvars.copy_context()
        try:
            return _worker.submit(lambda: context.run(handler, *args, **kwargs)).result()
        except WhenceError as error:
            raise gr.Error(str(error), print_exception=False) from None
        except Exception:
            _log.exception("A request failed")
            sentence = "This could not be computed; the log of the server tells why."
            raise gr.Error(sentence, print_exception=False) from None

    return run
