"""Explanations by other libraries beside ours, in one run, on the same weights and inputs.

    python benchmarks/peers.py --batch 1 8 --authors path/to/Transformer-Explainability

The model is a ViT of timm with random weights. The authors' code is read from a checkout that you
name; Captum and pytorch-grad-cam are used where they are installed, and left out, with a line that
says why, where not. All take turns within each round, and the fastest round counts. Where a peer
computes what a method of ours computes, too, their agreement is the correlation of the two maps,
the lowest among samples. (For lxt, which needs an older transformers, see attnlrp_beside_lxt.py.)
"""

import argparse
import copy
import platform
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import timm
import torch
from engine import peak_memory, timed
from torch import Tensor, nn

from whence import Explainer
from whence.version import __version__

TARGET = 0


class Variant(NamedTuple):
    """Something that is measured; `like` is what of ours computes the same quantity."""

    run: Callable[[], Any]
    like: str = ""


class ToGrid(nn.Module):
    """Tokens behind a class token as a picture of features, which Captum's Grad-CAM wants."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.prefix: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        self.prefix = tokens[:, :1]
        return grid_of(tokens, self.rows)


class FromGrid(nn.Module):
    """The way back."""

    def __init__(self, to_grid: ToGrid) -> None:
        super().__init__()
        self.to_grid = [to_grid]  # in a list, so as not to be one of its modules

    def forward(self, grid: Tensor) -> Tensor:  # noqa: D102
        prefix = self.to_grid[0].prefix
        assert prefix is not None
        return torch.cat([prefix, grid.flatten(2).mT], 1)


def grid_of(tokens: Tensor, rows: int) -> Tensor:
    return tokens[:, 1:].mT.reshape(len(tokens), -1, rows, rows)


def by_patch(pixels: Tensor, rows: int) -> Tensor:
    """Values of pixels, (batch, height, width), averaged over patches."""
    return nn.functional.adaptive_avg_pool2d(pixels[:, None], rows)[:, 0].flatten(1)


def ours(model: nn.Module, pixels: Tensor, steps: int) -> dict[str, Variant]:
    def by(method: str, fast: bool = False, **options: Any) -> Variant:
        explainer = Explainer(model, fast=fast)

        def run() -> Tensor:
            found = explainer.explain(pixels, target=TARGET, method=method, **options)
            return found.scores

        return Variant(run)

    found = {
        "whence": by("whence"),
        "tiba, stable": by("tiba"),
        "tiba, reference": by("tiba", rules="reference"),
        "gae": by("gae"),
        "rollout": by("rollout"),
        "attnlrp": by("attnlrp"),
        "gradcam": by("gradcam"),
        "integrated_gradients": by("integrated_gradients", steps=steps),
    }
    if pixels.is_cuda:
        found["whence, fast"] = by("whence", fast=True)
        found["tiba, stable, fast"] = by("tiba", fast=True)
        found["gae, fast"] = by("gae", fast=True)
    return found


def plain(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    def forward() -> None:
        with torch.no_grad():
            model(pixels)

    def forward_and_backward() -> None:
        leaf = pixels.clone().requires_grad_()
        torch.autograd.grad(model(leaf)[:, TARGET].sum(), leaf)

    return {"forward": Variant(forward), "forward + backward": Variant(forward_and_backward)}


def captum(model: nn.Module, pixels: Tensor, steps: int) -> dict[str, Variant]:
    from captum.attr import IntegratedGradients, LayerGradCam

    rows = model.patch_embed.grid_size[0]
    gridded = copy.deepcopy(model)
    to_grid = ToGrid(rows)
    last = gridded.blocks[-1]
    last.norm1 = nn.Sequential(last.norm1, to_grid, FromGrid(to_grid))
    cam = LayerGradCam(gridded, to_grid)

    def gradcam() -> Tensor:
        found = cam.attribute(pixels, target=TARGET, relu_attributions=True)
        return found.detach().flatten(1)

    def integrated() -> Tensor:
        found = IntegratedGradients(model).attribute(
            pixels, target=TARGET, n_steps=steps, internal_batch_size=max(steps, len(pixels))
        )
        return by_patch(found.sum(1), rows)

    return {
        "Captum, Grad-CAM": Variant(gradcam, "gradcam"),
        "Captum, integrated gradients": Variant(integrated, "integrated_gradients"),
    }


def grad_cam(model: nn.Module, pixels: Tensor, _: int) -> dict[str, Variant]:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    rows = model.patch_embed.grid_size[0]
    own = copy.deepcopy(model)  # hooks stay on it
    cam = GradCAM(own, [own.blocks[-1].norm1], reshape_transform=lambda t: grid_of(t, rows))
    targets = [ClassifierOutputTarget(TARGET)] * len(pixels)

    def run() -> Tensor:
        return by_patch(torch.from_numpy(cam(pixels, targets)), rows)

    return {"pytorch-grad-cam, Grad-CAM": Variant(run, "gradcam")}


@contextmanager
def on_this_device(device: torch.device):
    """The authors' code asks for CUDA by name; where there is none, tensors stay where they are."""
    if device.type == "cuda":
        yield
    else:
        with patch.object(Tensor, "cuda", lambda self, *_, **__: self):
            yield


def authors(model: nn.Module, pixels: Tensor, checkout: Path) -> dict[str, Variant]:
    sys.path.insert(0, str(checkout))
    from baselines.ViT.ViT_explanation_generator import LRP
    from baselines.ViT.ViT_LRP import VisionTransformer

    block = model.blocks[0]
    theirs = VisionTransformer(
        img_size=model.patch_embed.img_size[0],
        patch_size=model.patch_embed.patch_size[0],
        embed_dim=model.embed_dim,
        depth=len(model.blocks),
        num_heads=block.attn.num_heads,
        mlp_ratio=4,
        qkv_bias=True,
    )
    theirs.load_state_dict(model.state_dict())
    theirs.to(pixels.device).eval()
    generator = LRP(theirs)

    def run() -> Tensor:
        with on_this_device(pixels.device):
            maps = [  # it takes one image at a time
                generator.generate_LRP(one[None], TARGET, method="transformer_attribution")
                for one in pixels
            ]
        return torch.cat(maps).detach()

    return {"the authors' code": Variant(run, "tiba, reference")}


def collected(options: argparse.Namespace, model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    found = plain(model, pixels) | ours(model, pixels, options.steps)
    peers: dict[str, Callable[[], dict[str, Variant]]] = {
        "Captum": lambda: captum(model, pixels, options.steps),
        "pytorch-grad-cam": lambda: grad_cam(model, pixels, options.steps),
    }
    if options.authors is not None:
        peers["the authors' code"] = lambda: authors(model, pixels, options.authors)
    for name, peer in peers.items():
        try:
            found |= peer()
        except (ImportError, RuntimeError) as error:
            print(f"Without {name}: {str(error).splitlines()[0]}")
    return found


def agreement(a: Tensor, b: Tensor) -> float:
    """The lowest correlation of two maps of a sample."""
    a, b = (x.detach().double().cpu().flatten(1) for x in (a, b))
    a, b = (x - x.mean(1, keepdim=True) for x in (a, b))
    return float(nn.functional.cosine_similarity(a, b).min())


def measure(
    runs: dict[str, Variant], rounds: int, device: torch.device
) -> tuple[dict[str, float], dict[str, float | None], dict[str, Any]]:
    results: dict[str, Any] = {}

    def kept(name: str) -> Callable[[], None]:
        return lambda: results.__setitem__(name, runs[name].run())

    memory = {name: peak_memory(kept(name), device) for name in runs}  # warms up as well
    fastest = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, variant in runs.items():
            fastest[name] = min(fastest[name], timed(variant.run, device))
    return fastest, memory, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224", help="a ViT of timm")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of integrated gradients")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tf32", action="store_true", help="let float32 products use TF32")
    parser.add_argument("--authors", type=Path, help="a checkout of Transformer-Explainability")
    options = parser.parse_args()
    if options.authors is not None and not (options.authors / "baselines/ViT/ViT_LRP.py").exists():
        parser.error(f"{options.authors} is no checkout of Transformer-Explainability.")
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = timm.create_model(options.model, pretrained=False).to(device).eval()
    on = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    print(
        f"{options.model}, float32{' with TF32' * options.tf32}, {device} ({on}, "
        f"{torch.get_num_threads()} threads), whence {__version__}, torch {torch.__version__}"
    )
    for batch in options.batch:
        pixels = torch.randn(batch, 3, *model.patch_embed.img_size, device=device)
        runs = collected(options, model, pixels)
        fastest, memory, results = measure(runs, options.rounds, device)
        print(f"\n| batch {batch} | ms | forwards | peak MB | agreement |")
        print("| --- | ---: | ---: | ---: | --- |")
        for name, seconds in sorted(fastest.items(), key=lambda pair: pair[1]):
            like = runs[name].like
            same = f"{agreement(results[name], results[like]):.5f} with {like}" if like else ""
            peak = memory[name]
            print(
                f"| {name} | {seconds * 1e3:.1f} | {seconds / fastest['forward']:.1f} "
                f"| {'?' if peak is None else f'{peak / 1e6:.0f}'} | {same} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
