"""Seconds of the whole image table of one model: each protocol, all methods, beside a naive loop.

    python benchmarks/tables.py --model ./vit --data imagenet --masks pets --photos 500 \
        --device cuda --batch 64 --out table

All methods of photos are judged but those that delete or mask inputs themselves. The naive loop is
the same code with one photo and one forward at a time, as papers' code mostly has it; it runs on a
few photos (--naive), and its seconds are scaled to all. Its figures are compared with the others:
what differs is said. What a protocol computes once (a mean colour, a fine-tuned copy) is told
apart and is not scaled. Protocols on the same photos share the explanations of predicted classes,
so the first of them takes longest; the naive loop shares nothing. With --out the tables stay
there, as those of `whence benchmark`. With --json FILE, protocols that the file has are not
measured again, so that several short commands can fill it.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from whence import WhenceError, datasets, methods, models
from whence.benchmark import build_protocol, parse_methods, parse_protocols, run
from whence.benchmark.runner import draw_names
from whence.benchmark.shared_explanations import share_explanations

PERTURBING = ("occlusion", "rise", "search", "value_zeroing", "vit_cx")
PROTOCOLS = "perturbation,srg,saco,segmentation,localization,gridpg,f_fidelity,randomization,trust"
WITH_MASKS = ("segmentation", "localization")


@contextmanager
def one_at_a_time():
    """Let every forward pass have one row."""
    holders = [
        module
        for name, module in sys.modules.items()
        if name.startswith("whence.") and hasattr(module, "choose_chunk_size")
    ]
    kept = holders[0].choose_chunk_size
    for module in holders:
        module.choose_chunk_size = lambda *_, **__: 1
    try:
        yield
    finally:
        for module in holders:
            module.choose_chunk_size = kept


def wait(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def judge(protocol, loaded, samples, chosen, batch: int) -> dict[str, list]:
    """Rows of each method; a method that fails is left out and named."""
    found = {}
    for method in chosen:
        try:
            found[method.label] = [
                row
                for start in range(0, len(samples), batch)
                for row in protocol.compute_rows(loaded, samples[start : start + batch], method)
            ]
        except Exception as error:
            print(f"  {protocol.name}, {method.label}: {error}", file=sys.stderr)
    return found


def compare(ours: dict[str, list], naive: dict[str, list]) -> float:
    """The largest difference of a figure of both, but lists."""
    apart = 0.0
    for label, rows in naive.items():
        for one, other in zip(ours.get(label, ()), rows, strict=False):
            for name, value in other.items():
                if isinstance(value, float) and isinstance(one.get(name), float):
                    apart = max(apart, abs(value - one[name]))
    return apart


def measure_naively(protocol, loaded, data, chosen, settings) -> dict:
    """Seconds of one photo and one forward at a time, scaled to all photos."""
    names = draw_names(data.list_names(), settings.photos, settings.seed)
    judged = build_protocol(protocol.name, protocol.options)
    judged.start(names, settings.seed)
    begin = wait(settings.device)
    judged.fit(loaded, data, names, None)
    fitted = wait(settings.device) - begin
    used = [name for name in names if name in getattr(judged, "_placed", names)]  # in mosaics
    few = []
    for one in used[: settings.naive]:
        few.append(judged.prepare(loaded, data.read(one)))
    working = list(judge(judged, loaded, few[:1], chosen, 1))  # warms up
    chosen = [method for method in chosen if method.label in working]
    with one_at_a_time():
        begin = wait(settings.device)
        slow = judge(judged, loaded, few, chosen, 1)
        naive = (wait(settings.device) - begin) / len(few) * len(used)
    return {
        "protocol": protocol.name,
        "options": {name: str(value) for name, value in protocol.options.items()},
        "data": data.name,
        "photos": len(names),
        "methods": len(chosen),
        "of which once": fitted,
        "naive seconds": naive + fitted,
        "largest difference": compare(judge(judged, loaded, few, chosen, len(few)), slow),
        "working": working,
    }


def measure(row, protocol, loaded, data, settings) -> None:
    """Add the seconds of the run as it is: reading, rows, table, chart and page."""
    begin = wait(settings.device)
    with tempfile.TemporaryDirectory() as folder:
        run(
            protocol.name,
            loaded,
            data,
            ",".join(row["working"]),
            limit=settings.photos,
            seed=settings.seed,
            batch=settings.batch,
            out=(settings.out or Path(folder)) / f"{protocol.name}-{data.name}",
            **protocol.options,
        )
    row["seconds"] = wait(settings.device) - begin


def show(rows: list[dict]) -> None:
    print("| protocol | data | photos | methods | seconds | naive | times | differs by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['protocol']} | {row['data']} | {row['photos']} | {row['methods']} "
            f"| {row['seconds']:.1f} | {row['naive seconds']:.0f} "
            f"| {row['naive seconds'] / row['seconds']:.1f} | {row['largest difference']:.0e} |"
        )
    ours, naive = (sum(row[name] for row in rows) for name in ("seconds", "naive seconds"))
    print(
        f"Together: {ours / 60:.1f} minutes, the naive loop {naive / 60:.1f} minutes (scaled from "
        f"a few photos), {naive / ours if ours else math.nan:.1f} times as long."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="photos, with labels if there are any")
    parser.add_argument("--masks", help="photos with masks, for segmentation and localization")
    parser.add_argument("--protocols", default=PROTOCOLS, help="with options if wanted")
    parser.add_argument("--methods", help="if left out, all but the perturbation-based")
    parser.add_argument("--without", default="", help="methods to leave out, by commas")
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--naive", type=int, default=2, help="photos of the naive loop")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a folder for the tables; left out: kept nowhere")
    parser.add_argument("--json", type=Path, help="a file for the figures, which is added to")
    settings = parser.parse_args()
    loaded = models.load(settings.model, "image", device=settings.device)
    without = (*PERTURBING, *settings.without.split(","))
    listed = ",".join(one for one in methods.available("image") if one not in without)
    chosen = parse_methods(settings.methods or listed)
    kept = settings.json
    rows = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    done = [(row["protocol"], row["data"]) for row in rows]
    jobs = []
    for protocol in parse_protocols(settings.protocols):
        place = settings.masks if protocol.name in WITH_MASKS else settings.data
        data = None if place is None else datasets.load(place)
        if data is None or (protocol.name, data.name) in done:
            continue
        try:
            row = measure_naively(protocol, loaded, data, chosen, settings)
        except WhenceError as error:
            print(f"{protocol.name} is left out: {error}", file=sys.stderr)
            continue
        print(
            f"{protocol.name}, naively: {row['naive seconds']:.1f} s", file=sys.stderr, flush=True
        )
        jobs.append((row, protocol, data))
    with share_explanations():
        for row, protocol, data in jobs:
            measure(row, protocol, loaded, data, settings)
            print(f"{protocol.name}: {row['seconds']:.1f} s", file=sys.stderr, flush=True)
            rows.append(row)
            if kept is not None:
                kept.write_text(json.dumps(rows, indent=2) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
