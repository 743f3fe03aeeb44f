"""Measures how long a quick request waits on `whence serve` while a slow one is computed.

    python benchmarks/serve_wait.py --requests 10

One visitor explains photos by the default method, no two of them the same: first alone, then while
another visitor explains a photo by a method of a thousand passes. At the end the slow visitor
leaves, and the time is measured until slow work of someone else begins.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time

import httpx
from serve_load import make_photo, send_request, start_server

from whence._util.defaults import METHOD

SLOW = "rise"


def make_request(http: httpx.Client, seed: int, method: str) -> tuple[str, list[object]]:
    """The name of an event and its data, of a photo that is uploaded."""
    files = {"files": ("photo.jpg", make_photo(seed), "image/jpeg")}
    (path,) = http.post("/gradio_api/upload", files=files).raise_for_status().json()
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    return "explain_image", ["pets (embedded)", file, [], [method], ""]


def measure_quick(http: httpx.Client, seeds: range) -> list[float]:
    """The seconds that each of some quick requests takes, upload included."""
    seconds = []
    for seed in seeds:
        start = time.monotonic()
        outcome = send_request(http, *make_request(http, seed, METHOD))
        if outcome != "done":
            raise SystemExit(outcome)
        seconds.append(time.monotonic() - start)
    return seconds


class SlowVisitor:
    """Asks for slow work on a page, sees how far it is, and leaves."""

    def __init__(self, http: httpx.Client, seed: int) -> None:
        name, data = make_request(http, seed, SLOW)
        config = http.get("/config").json()["dependencies"]
        number = next(one["id"] for one in config if one["api_name"] == name)
        self.session, self.steps, self.ended = f"slow{seed}", 0, False
        self.begun, self.leave = threading.Event(), threading.Event()
        request = {"data": data, "fn_index": number, "session_hash": self.session}
        http.post("/gradio_api/queue/join", json=request).raise_for_status()
        self.thread = threading.Thread(target=self._follow, args=(str(http.base_url),))
        self.thread.start()

    def _follow(self, address: str) -> None:
        path = f"/gradio_api/queue/data?session_hash={self.session}"
        with (
            httpx.Client(base_url=address, timeout=300, trust_env=False) as http,
            http.stream("GET", path) as lines,
        ):
            for line in lines.iter_lines():
                if self.leave.is_set():
                    return
                message = json.loads(line.removeprefix("data:") or "{}") if line else {}
                if message.get("msg") == "progress":
                    self.steps = message["progress_data"][0]["index"] or 0
                    if self.steps:
                        self.begun.set()
                elif message.get("msg") == "process_completed":
                    self.ended = True
                    self.begun.set()
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--port", type=int, default=7998)
    arguments = parser.parse_args()
    server, address = start_server(arguments.port)
    try:
        with httpx.Client(base_url=address, timeout=300, trust_env=False) as http:
            count = arguments.requests
            measure_quick(http, range(-3, 0))  # warm up
            times = {"alone": measure_quick(http, range(count))}
            slow = SlowVisitor(http, 10_000)
            slow.begun.wait()
            before = slow.steps
            times[f"beside {SLOW}"] = measure_quick(http, range(count, 2 * count))
            print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
            for name, seconds in times.items():
                median, longest = statistics.median(seconds), max(seconds)
                print(f"quick request {name}: median {median:.2f} s, longest {longest:.2f} s")
            print(f"meanwhile the slow one went from step {before} to {slow.steps} of 1000")
            slow.leave.set()
            slow.thread.join()
            left, second = time.monotonic(), SlowVisitor(http, 20_000)
            second.begun.wait()
            print(f"after the slow visitor left, the next began in {time.monotonic() - left:.1f} s")
            second.leave.set()
            second.thread.join()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
