"""Make the picture of a vision-language model, with a toy that is trained here in a minute or two.

    PYTHONPATH=. python docs/vision_language_pictures.py

The toy and its drawings are those of benchmarks/vision_language.py.
"""

import argparse
import io
from pathlib import Path

import torch
from benchmarks.vision_language import build, encode, make_prompt, make_questions
from PIL import Image

from whence import Explainer

PATH = Path(__file__).parent / "images" / "vision-language.jpg"
# Which of the drawings, and what is asked of it.
NUMBER, SHAPE = 3, "circle"


def main() -> None:
    """Train, or take the weights that are given, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="What benchmarks/vision_language.py saved.")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = build(asked.weights)
    drawing = make_questions(NUMBER + 1)[0][NUMBER]
    inputs = encode(tokenizer, [drawing], [make_prompt(SHAPE)])
    result = Explainer(model, tokenizer=tokenizer).explain(inputs, of=["input_ids", "pixel_values"])
    photo = drawing.image.resize((384, 384), Image.Resampling.NEAREST)
    question = f"What colour is the {SHAPE}? It is"
    stream = io.BytesIO()
    result.plot(image=photo, title=question).to_image(1.5).save(stream, "JPEG", quality=88)
    PATH.write_bytes(stream.getvalue())


if __name__ == "__main__":
    main()
