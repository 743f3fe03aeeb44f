"""Forgets what Gradio keeps of visitors, so that memory does not grow with their number."""

from __future__ import annotations

from collections import OrderedDict

import gradio as gr

# Results of so many visitors are kept for those who have not fetched them yet.
_KEPT = 64

# Gradio reads these when a page is built: it keeps a record of each of the last 10,000 requests,
# and makes a table of all of them after every single one.
NO_RECORDS = {
    "GRADIO_ANALYTICS_MAX_EVENTS": "1",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**12),
}


class Sessions:
    """The visitors of a page whose requests have ended, in this order.

    Gradio itself keeps a queue of messages for each of 2,000 visitors, with results that nobody
    fetched, and the name of every visitor for ever. Each request of a program is a visitor.
    """

    def __init__(self) -> None:
        self._ended: OrderedDict[str, None] = OrderedDict()

    def end_request(self, page: gr.Blocks, visitor: str) -> None:
        """Take note of a request that has ended, and forget the visitors that are idle longest."""
        queue = page._queue  # a visitor who comes back is added to it again
        busy = {event.session_hash for event in queue.event_ids_to_events.values()}
        # Some requests are refused before they are handled.
        self._ended.update(dict.fromkeys(queue.pending_event_ids_session.keys() - busy))
        self._ended[visitor] = None
        self._ended.move_to_end(visitor)
        for old in list(self._ended)[:-_KEPT]:
            del self._ended[old]
            if old not in busy:
                queue.pending_event_ids_session.pop(old, None)
                queue.pending_messages_per_session.pop(old, None)
