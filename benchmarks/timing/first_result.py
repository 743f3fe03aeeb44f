"""Say how long the first explanation takes in this process; `processes.py` starts it."""

import argparse
import json

import torch

from whence import Explainer

from . import models
from .rounds import measure_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=(*models.SIZES, models.SMOKE), default="tiny")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="whence")
    parser.add_argument("--precision")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = models.build_classifier(options.size, device)
    inputs = models.make_inputs(options.batch, device, image=models.default_image(options.size))
    models.run_forward(model, inputs)
    explainer = Explainer(model, compile=options.compile, precision=options.precision)

    def explain() -> None:
        explainer.explain(inputs, target=0, method=options.method)

    print(json.dumps({"seconds": measure_seconds(explain, device)}))


if __name__ == "__main__":
    main()
