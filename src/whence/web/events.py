"""Connects events of Gradio components to handlers, which run in the lanes of the page."""

from __future__ import annotations

import functools
import html
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from weakref import WeakKeyDictionary

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component
from gradio.context import LocalContext

from whence.errors import WhenceError
from whence.web.lanes import Job, JobCancelledError, Lanes
from whence.web.sessions import Sessions

_log = logging.getLogger("whence.web")
_lanes_of_pages: WeakKeyDictionary[gr.Blocks, Lanes] = WeakKeyDictionary()
_sessions_of_pages: WeakKeyDictionary[gr.Blocks, Sessions] = WeakKeyDictionary()


@contextmanager
def open_lanes(page: gr.Blocks, limit: int) -> Iterator[None]:
    """Open the lanes of a page until the block ends; in each, `limit` requests may wait."""
    lanes = _lanes_of_pages[page] = Lanes(limit)
    _sessions_of_pages[page] = Sessions()
    try:
        yield
    finally:
        lanes.cancel()


def connect(
    event: Callable[..., object],
    handler: Callable[..., object],
    inputs: Sequence[Component],
    outputs: Sequence[Block],
    api_name: str | None = None,
) -> None:
    """Call a handler with the values of inputs on an event such as ``button.click``.

    Handlers check all values themselves, so Gradio does not preprocess them. Each call is a job in
    the lanes of the page. Programs may call it if it has an `api_name`.
    """
    # Progress and errors cover results, not the fields in which a mistake is put right.
    results = [one for one in outputs if isinstance(one, gr.HTML | gr.File)]
    event(
        _run_as_job(handler, len(outputs)),
        list(inputs),
        list(outputs),
        preprocess=False,
        api_name=api_name,
        api_visibility="public" if api_name else "private",
        show_progress_on=results or None,
        concurrency_limit=None,  # the lanes say whose turn it is
    )


def connect_cancel(event: Callable[..., object]) -> None:
    """Cancel all that a visitor waits for, on an event such as ``button.click``."""
    event(
        _cancel,
        None,
        None,
        api_visibility="private",
        show_progress="hidden",
        concurrency_limit=None,
    )


async def _cancel() -> None:
    _lanes_of_pages[_get_page()].cancel(_get_visitor())


def _run_as_job(handler: Callable[..., object], count: int) -> Callable[..., Awaitable[object]]:
    """Run a handler as a job. Visitors see a WhenceError; other errors go to the log."""

    @functools.wraps(handler)
    async def run(*args: object) -> object:
        page, visitor = _get_page(), _get_visitor()
        job = Job(visitor, _make_display(), _make_look(page))
        try:
            return await _lanes_of_pages[page].run(job, functools.partial(handler, *args))
        except JobCancelledError:
            gr.Info("Cancelled. The page is as it was before.", duration=4)
            return gr.skip() if count == 1 else (gr.skip(),) * count
        except WhenceError as error:
            # Gradio shows it as HTML, and it may quote what a visitor typed or a bundle holds.
            sentence = html.escape(str(error), quote=False)
            raise gr.Error(sentence, print_exception=False) from None
        except Exception:
            _log.exception("A request failed")
            sentence = "This could not be computed; the log of the server tells why."
            raise gr.Error(sentence, print_exception=False) from None
        finally:
            _sessions_of_pages[page].end_request(page, visitor)

    return run


def _get_page() -> gr.Blocks:
    page = LocalContext.blocks.get()
    if page is None:
        raise RuntimeError("Events are handled while a page is served.")
    return page


def _get_visitor() -> str:
    """The name that Gradio gives to an open page, or to a single request of a program."""
    request = LocalContext.request.get()
    return "" if request is None else str(request.session_hash)


def _make_display() -> Callable[[str | None, tuple[int, int | None], str], None]:
    """Make a function that shows progress to the visitor of this event, from any thread."""
    # Gradio finds the event through the context of the request.
    progress, context = gr.Progress(), copy_context()

    def show(doing: str | None, steps: tuple[int, int | None], unit: str) -> None:
        context.copy().run(progress, steps, doing, None, unit)

    return show


def _make_look(page: gr.Blocks) -> Callable[[], bool]:
    """Make a function that tells whether the visitor of this event has left."""
    event = page._queue.event_ids_to_events.get(LocalContext.event_id.get() or "")
    return lambda: event is not None and not event.alive
