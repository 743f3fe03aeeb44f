"""What one photo costs in a run over many, part by part, and what a million would take.

    python benchmarks/photo_cost.py --size base --device cuda --compile --precision tf32 --batch 64

Photos are JPEG files of 500 by 375 in memory; the model is a ViT with random weights, which cost
as much as trained ones. Each part is measured alone, over all photos: preparing (decode, resize,
crop, normalise) in 1 thread and in several; explaining full batches of prepared photos; and the
whole path that `whence explain --format parquet` takes, without reading and writing files. The
fastest of three rounds counts.
"""

import argparse
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import transformers
from PIL import Image
from timing.models import SIZES

from whence.demo import PHOTO
from whence.methods import MethodSpecification
from whence.models import LoadedModel, PreparedBatch, load
from whence.models.text_preprocessing import join_batches
from whence.pipeline import BatchExplainer, ExplainSettings

GPUS, PHOTOS = 8, 1_000_000


class Photo:
    """A photo whose bytes are in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self) -> Image.Image:
        """Decode it."""
        return Image.open(io.BytesIO(self.content)).convert("RGB")


def main() -> None:
    options = parse_options()
    loaded = load_vit(options)
    photos = make_photos(options.photos)
    rows: dict[str, float] = {}
    for threads in options.threads:
        rows[f"prepare, {threads} thread{'s' if threads > 1 else ''}"] = measure(
            lambda threads=threads: prepare_in_threads(loaded, photos, threads), len(photos)
        )
    prepared = [loaded.prepare([photo.read()]) for photo in photos]
    batches = join(prepared, options.batch)
    rows["explain, full batches"] = measure(
        lambda: [explain(loaded, batch, options) for batch in batches], len(photos)
    )
    settings = ExplainSettings(
        (MethodSpecification(options.method, options.method, {}, "stable"),),
        batch=options.batch,
        compile=options.compile,
        precision=options.precision,
        memory=options.memory,
    )
    for threads in options.threads:
        explainer = BatchExplainer(settings, loaded, threads=threads)
        rows[f"whole path, {threads} thread{'s' if threads > 1 else ''}"] = measure(
            lambda explainer=explainer: run_whole(explainer, photos, options.batch), len(photos)
        )
    report(rows, options)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="whence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--photos", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", default=None)
    parser.add_argument("--memory", type=float, default=None)
    return parser.parse_args()


def load_vit(options: argparse.Namespace) -> LoadedModel:
    """Save a ViT with random weights to a folder, and load it as a user's model is loaded."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(num_labels=1000, **SIZES[options.size])
    with tempfile.TemporaryDirectory() as folder:
        transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
        transformers.ViTImageProcessor().save_pretrained(folder)
        return load(
            folder, device=options.device, compile=options.compile, precision=options.precision
        )


def make_photos(count: int) -> list[Photo]:
    image = Image.open(PHOTO).convert("RGB").resize((500, 375))
    photos = []
    for number in range(count):
        stream = io.BytesIO()
        image.rotate(number % 7).save(stream, "JPEG", quality=90)
        photos.append(Photo(stream.getvalue()))
    return photos


def prepare_in_threads(loaded: LoadedModel, photos: list[Photo], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda photo: loaded.prepare([photo.read()]), photos))


def join(prepared: list[PreparedBatch], size: int) -> list[PreparedBatch]:
    return [join_batches(prepared[at : at + size]) for at in range(0, len(prepared), size)]


def explain(loaded: LoadedModel, batch: PreparedBatch, options: argparse.Namespace) -> Any:
    return loaded.explain(batch, method=options.method, memory=options.memory).scores.cpu()


def run_whole(explainer: BatchExplainer, photos: list[Photo], size: int) -> None:
    for at in range(0, len(photos), size):
        for one in explainer.explain(photos[at : at + size]):
            assert one.error is None, one.error


def measure(run: Callable[[], Any], count: int) -> float:
    """Milliseconds a photo, of the fastest of three rounds after one that warms up."""
    run()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return 1000 * min(seconds) / count


def report(rows: dict[str, float], options: argparse.Namespace) -> None:
    place = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(json.dumps({"torch": torch.__version__, "device": place, "cores": os.cpu_count()}))
    print(json.dumps(vars(options)))
    print(f"{'part':<28}{'ms a photo':>12}{'a second':>12}{f'1M on {GPUS}, min':>16}")
    for name, cost in rows.items():
        minutes = PHOTOS * cost / 1000 / 60 / GPUS
        print(f"{name:<28}{cost:>12.3f}{1000 / cost:>12.0f}{minutes:>16.1f}")


if __name__ == "__main__":
    main()
