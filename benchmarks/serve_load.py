"""Many clients of `whence serve` at once: what they are answered, and whether memory stays flat.

    python benchmarks/serve_load.py --clients 50 --seconds 60

The server runs in a process of its own, with the embedded models and its usual queue. Each client
explains a photo or a text of its own, again and again, waits for each answer, and tries again a
little later where it is told that the page is busy.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
from PIL import Image

from whence.demo import PHOTO
from whence.web.desk import default_method

PAUSE = 1.0  # seconds, after "busy"


def started(port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "whence", "serve", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return server, found[0]
    raise SystemExit("The server did not start.")


def resident(process: int) -> float:
    """Mebibytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def a_photo(seed: int) -> bytes:
    """The sample, turned and cut by chance, so that no two clients ask the same."""
    chance = random.Random(seed)
    image = Image.open(PHOTO).rotate(chance.uniform(-20, 20))
    left, top = chance.randrange(60), chance.randrange(60)
    out = io.BytesIO()
    image.crop((left, top, left + 220, top + 220)).save(out, "JPEG")
    return out.getvalue()


def request(http: httpx.Client, seed: int) -> tuple[str, list[object]]:
    if seed % 2:
        words = random.Random(seed).choices(
            "a fine dull film with superb actors and no plot".split(), k=12
        )
        return "explain_text", ["sentiment (embedded)", " ".join(words), [], [default_method()]]
    files = {"files": ("photo.jpg", a_photo(seed), "image/jpeg")}
    (path,) = http.post("/gradio_api/upload", files=files).raise_for_status().json()
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    return "explain_image", ["pets (embedded)", file, [], [default_method()]]


def answer(http: httpx.Client, name: str, data: list[object]) -> str:
    """What became of a request: done, busy, or what went wrong."""
    joined = http.post(f"/gradio_api/call/{name}", json={"data": data})
    if joined.status_code == 503:
        return "busy"
    event = joined.raise_for_status().json()["event_id"]
    with http.stream("GET", f"/gradio_api/call/{name}/{event}") as lines:
        told = ""
        for line in lines.iter_lines():
            if line.startswith("event:"):
                told = line.removeprefix("event:").strip()
            elif told == "complete":
                json.loads(line.removeprefix("data:"))
                return "done"
            elif told == "error":
                return line
    return "no answer"


def client(address: str, seed: int, until: float, seen: Counter[str], times: list[float]) -> None:
    with httpx.Client(base_url=address, timeout=120, trust_env=False) as http:
        while time.monotonic() < until:
            begun = time.monotonic()
            try:
                what = answer(http, *request(http, seed))
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
            seen[what] += 1
            if what == "done":
                times.append(time.monotonic() - begun)
            else:
                time.sleep(PAUSE)
            seed += 1000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clients", type=int, default=50)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--port", type=int, default=7999)
    given = arguments.parse_args()
    server, address = started(given.port)
    seen: Counter[str] = Counter()
    times: list[float] = []
    memory: list[float] = []
    try:
        client(address, 0, time.monotonic() + 5, Counter(), [])  # what is loaded once
        begun = time.monotonic()
        clients = [
            threading.Thread(target=client, args=(address, n, begun + given.seconds, seen, times))
            for n in range(given.clients)
        ]
        for one in clients:
            one.start()
        while any(one.is_alive() for one in clients):
            memory.append(resident(server.pid))
            time.sleep(1)
        client(address, 1, time.monotonic() + 1, Counter(), [])  # it still answers
    finally:
        server.terminate()
        server.wait()
    times.sort()
    third = max(1, len(memory) // 3)
    print(f"{given.clients} clients, {given.seconds:.0f} seconds, {os.cpu_count()} cores")
    print("answers:", dict(seen.most_common()))
    if times:
        print(f"answers a second: {len(times) / given.seconds:.1f}")
        print(f"seconds to an answer: median {times[len(times) // 2]:.2f}, longest {times[-1]:.2f}")
    print("memory, MiB, every 5 seconds:", *(round(m) for m in memory[::5]))
    for name, part in {"first": memory[:third], "last": memory[-third:]}.items():
        print(f"memory in the {name} third: {max(part):.0f} MiB at most")
    if set(seen) - {"done", "busy"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
