"""Measures `whence serve` under many clients: answers, times, and whether memory stays flat.

    python benchmarks/serve_load.py --clients 50 --seconds 60

The server runs in a process of its own, with the embedded models and its usual queue. Each client
explains a photo or a text of its own, again and again. It waits for each answer, and tries again a
little later when the page is busy.
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

from whence._util.defaults import METHOD
from whence.demo import PHOTO

PAUSE = 1.0  # seconds, after "busy"


def start_server(port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "whence.cli", "serve", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in server.stdout or ():
        if address := re.search(r"http://\S+", line):
            return server, address[0]
    raise SystemExit("The server did not start.")


def read_memory(process: int) -> float:
    """Resident memory of a process, in mebibytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def make_photo(seed: int) -> bytes:
    """The sample photo, rotated and cropped at random, so that no two clients send the same."""
    generator = random.Random(seed)
    image = Image.open(PHOTO).rotate(generator.uniform(-20, 20))
    left, top = generator.randrange(60), generator.randrange(60)
    out = io.BytesIO()
    image.crop((left, top, left + 220, top + 220)).save(out, "JPEG")
    return out.getvalue()


def make_request(http: httpx.Client, seed: int) -> tuple[str, list[object]]:
    """The name of an event and its data; uploads a photo where it takes one."""
    if seed % 2:
        words = random.Random(seed).choices(
            "a fine dull film with superb actors and no plot".split(), k=12
        )
        return "explain_text", ["sentiment (embedded)", " ".join(words), [], [METHOD], ""]
    files = {"files": ("photo.jpg", make_photo(seed), "image/jpeg")}
    (path,) = http.post("/gradio_api/upload", files=files).raise_for_status().json()
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    return "explain_image", ["pets (embedded)", file, [], [METHOD], ""]


def send_request(http: httpx.Client, name: str, data: list[object]) -> str:
    """Send a request and wait for its outcome: done, busy, or the error."""
    joined = http.post(f"/gradio_api/call/{name}", json={"data": data})
    if joined.status_code == 503:
        return "busy"
    event_id = joined.raise_for_status().json()["event_id"]
    with http.stream("GET", f"/gradio_api/call/{name}/{event_id}") as lines:
        event = ""
        for line in lines.iter_lines():
            if line.startswith("event:"):
                event = line.removeprefix("event:").strip()
            elif event == "complete":
                json.loads(line.removeprefix("data:"))
                return "done"
            elif event == "error":
                return "busy" if "busy" in line else line
    return "no answer"


def run_client(
    address: str, seed: int, until: float, outcomes: Counter[str], times: list[float]
) -> None:
    """Send requests until a moment, count their outcomes, and collect the times of answers."""
    with httpx.Client(base_url=address, timeout=120, trust_env=False) as http:
        while time.monotonic() < until:
            start = time.monotonic()
            try:
                outcome = send_request(http, *make_request(http, seed))
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            outcomes[outcome] += 1
            if outcome == "done":
                times.append(time.monotonic() - start)
            else:
                time.sleep(PAUSE)
            seed += 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--port", type=int, default=7999)
    arguments = parser.parse_args()
    server, address = start_server(arguments.port)
    outcomes: Counter[str] = Counter()
    times: list[float] = []
    memory: list[float] = []
    try:
        run_client(address, 0, time.monotonic() + 5, Counter(), [])  # warm up
        end = time.monotonic() + arguments.seconds
        clients = [
            threading.Thread(target=run_client, args=(address, n, end, outcomes, times))
            for n in range(arguments.clients)
        ]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients):
            memory.append(read_memory(server.pid))
            time.sleep(1)
        run_client(address, 1, time.monotonic() + 1, Counter(), [])  # it still answers
    finally:
        server.terminate()
        server.wait()
    times.sort()
    third = max(1, len(memory) // 3)
    print(f"{arguments.clients} clients, {arguments.seconds:.0f} seconds, {os.cpu_count()} cores")
    print("answers:", dict(outcomes.most_common()))
    if times:
        print(f"answers a second: {len(times) / arguments.seconds:.1f}")
        print(f"seconds to an answer: median {times[len(times) // 2]:.2f}, longest {times[-1]:.2f}")
    print("memory, MiB, every 5 seconds:", *(round(m) for m in memory[::5]))
    for name, values in {"first": memory[:third], "last": memory[-third:]}.items():
        print(f"memory in the {name} third: {max(values):.0f} MiB at most")
    if set(outcomes) - {"done", "busy"}:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
