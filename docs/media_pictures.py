"""Make the pictures of videos and sounds, with toys that are trained here in a minute or two.

    PYTHONPATH=. python docs/media_pictures.py

The toys and their clips are those of benchmarks/media.py.
"""

import io
from pathlib import Path

import torch
from benchmarks.media import TASKS, draw_held_out, find_right, train
from PIL import Image

from whence import Explainer, Explanation

IMAGES = Path(__file__).parent / "images" / "media"
# Toys, and which of their clips is drawn.
CLIPS = {"ViViT": 2, "AST": 0, "Wav2Vec2": 3}


def explain_clip(name: str, number: int) -> Explanation:
    """Train a toy, and explain one of the clips that it gets right, for its two best classes."""
    model, clips = train(name), draw_held_out(name, 20)
    right = find_right(model, name, clips).nonzero()[number, 0]
    inputs = {TASKS[name].name: clips.inputs[right][None]}
    return Explainer(model).explain(inputs, classes=2 if name == "ViViT" else 1)


def save_jpeg(result: Explanation, path: Path) -> None:
    """Save a figure as a JPEG, which is small where there is noise."""
    image = result.plot().to_image(1.5)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    path.write_bytes(stream.getvalue())


def main() -> None:
    """Make all of them."""
    torch.set_num_threads(1)
    IMAGES.mkdir(parents=True, exist_ok=True)
    video = explain_clip("ViViT", CLIPS["ViViT"])
    save_jpeg(video, IMAGES / "video.jpg")
    # Only the first class moves, in fewer pixels: the file stays small.
    one = Explanation(
        video.scores[:, 0],
        video.target[:, 0],
        video.logits,
        grid=video.grid,
        axes=video.axes,
        image_size=video.image_size,
        target_names=[video.target_names[0][0]],
        method=video.method,
        version=video.version,
        media=video.media,
    )
    one.save(IMAGES / "video.gif")
    save_jpeg(explain_clip("AST", CLIPS["AST"]), IMAGES / "spectrogram.jpg")
    save_jpeg(explain_clip("Wav2Vec2", CLIPS["Wav2Vec2"]), IMAGES / "waveform.jpg")
    for file in sorted(IMAGES.iterdir()):
        with Image.open(file) as image:
            print(file, image.size, f"{file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
