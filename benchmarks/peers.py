"""Explanations by other libraries beside ours, in one run, on the same weights and inputs.

    python benchmarks/peers.py --batch 1 8 --authors path/to/Transformer-Explainability

The model is a ViT of timm with random weights. The authors' code is read from a checkout that you
name; Captum, pytorch-grad-cam and lxt are used where they are installed, and left out, with a line
that says how to get them, where not. All take turns within each round, and the fastest round
counts. Where two rows compute the same quantity, their agreement is the correlation of the two
maps, the lowest among samples, and their largest difference in terms of the largest score.

On text, lxt supports models of its own: attnlrp_beside_lxt.py compares the numbers there.
"""

import argparse
import copy
import platform
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine import peak_memory, timed
from whence import Explainer
from whence.version import __version__

TARGET = 0
AUTHORS = "the authors' code"
INSTALL = {  # what pip is asked for
    "Captum": "captum",
    "pytorch-grad-cam": "grad-cam",
    "lxt": "--no-deps lxt==2.1",  # the rules need torch alone
    AUTHORS: "einops",  # which it imports
}


class Variant(NamedTuple):
    """Something that is measured.

    Attributes:
        run: Does it.
        like: What of ours computes the same quantity.
        scaled: Whether it comes on a scale of its own, so that differences mean nothing.
    """

    run: Callable[[], Any]
    like: str = ""
    scaled: bool = False


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
    """Values of pixels, (batch, height, width), summed over patches."""
    area = pixels[0].numel() / rows**2
    return area * F.adaptive_avg_pool2d(pixels[:, None], rows)[:, 0].flatten(1)


def gradient(model: nn.Module, pixels: Tensor) -> Tensor:
    leaf = pixels.clone().requires_grad_()
    return torch.autograd.grad(model(leaf)[:, TARGET].sum(), leaf)[0]


def ours(model: nn.Module, pixels: Tensor, options: argparse.Namespace) -> dict[str, Variant]:
    def by(method: str, fast: bool = False, like: str = "", **request: Any) -> Variant:
        explainer = Explainer(model, fast=fast)  # of its own, so that it keeps what it compiled
        request |= {"target": TARGET, "method": method, "memory": options.memory}

        def run() -> Tensor:
            return explainer.explain(pixels, **request).scores

        return Variant(run, like)

    found = {
        "whence": by("whence"),
        "tiba, stable": by("tiba"),
        "tiba, reference": by("tiba", rules="reference"),
        "gae": by("gae"),
        "rollout": by("rollout"),
        "attnlrp": by("attnlrp"),
        "gradcam": by("gradcam"),
        "integrated_gradients": by("integrated_gradients", steps=options.steps),
    }
    if options.fast:
        found |= {
            "whence, fast": by("whence", fast=True, like="whence"),
            "tiba, stable, fast": by("tiba", fast=True, like="tiba, stable"),
            "tiba, reference, fast": by(
                "tiba", fast=True, like="tiba, reference", rules="reference"
            ),
            "gae, fast": by("gae", fast=True, like="gae"),
            "attnlrp, fast": by("attnlrp", fast=True, like="attnlrp"),
        }
    return found


def plain(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    def forward() -> None:
        with torch.no_grad():
            model(pixels)

    return {
        "forward": Variant(forward),
        "forward + backward": Variant(lambda: gradient(model, pixels)),
    }


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


def grad_cam(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    rows = model.patch_embed.grid_size[0]
    own = copy.deepcopy(model)  # hooks stay on it
    cam = GradCAM(own, [own.blocks[-1].norm1], reshape_transform=lambda t: grid_of(t, rows))
    targets = [ClassifierOutputTarget(TARGET)] * len(pixels)

    def run() -> Tensor:
        return by_patch(torch.from_numpy(cam(pixels, targets)), rows)

    return {"pytorch-grad-cam, Grad-CAM": Variant(run, "gradcam", scaled=True)}


def lxt(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    # Its list of supported models, none of them a ViT by AttnLRP, wants transformers 4.
    sys.modules.setdefault("lxt.efficient.models", MagicMock())
    from lxt.efficient import patches

    norm, activation = type(model.norm), type(model.blocks[0].mlp.act)
    plain_attention = F.scaled_dot_product_attention
    attention = patches.wrap_attention_forward(
        lambda _, *args, **options: plain_attention(*args, **options)
    )

    def run() -> Tensor:
        # The classes are patched, as lxt does it, but no longer than this takes.
        with (
            patch.object(norm, "forward", patches.layer_norm_forward),
            patch.object(activation, "original_forward", activation.forward, create=True),
            patch.object(activation, "forward", patches.non_linear_forward),
            patch.object(F, "scaled_dot_product_attention", partial(attention, None)),
        ):
            relevance = pixels * gradient(model, pixels)
        return by_patch(relevance.sum(1), model.patch_embed.grid_size[0])

    return {"lxt, AttnLRP": Variant(run, "attnlrp")}


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

    return {AUTHORS: Variant(run, "tiba, reference")}


def collected(options: argparse.Namespace, model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    found = plain(model, pixels) | ours(model, pixels, options)
    peers: dict[str, Callable[[], dict[str, Variant]]] = {
        "Captum": lambda: captum(model, pixels, options.steps),
        "pytorch-grad-cam": lambda: grad_cam(model, pixels),
        "lxt": lambda: lxt(model, pixels),
    }
    if options.authors is not None:
        peers[AUTHORS] = lambda: authors(model, pixels, options.authors)
    for name, peer in peers.items():
        try:
            found |= peer()
        except ModuleNotFoundError as error:
            print(f"Without {name}: {error} (pip install {INSTALL[name]})")
        except (ImportError, RuntimeError) as error:
            print(f"Without {name}: {str(error).splitlines()[0]}")
    wanted = {"forward", *(options.only or found)}
    return {name: variant for name, variant in found.items() if name in wanted}


def agreement(theirs: Tensor, ours: Tensor, scaled: bool) -> str:
    """The lowest correlation of two maps of a sample, and their largest difference."""
    theirs, ours = (x.detach().double().cpu().flatten(1) for x in (theirs, ours))
    difference = (theirs - ours).abs().max() / ours.abs().max()
    theirs, ours = (x - x.mean(1, keepdim=True) for x in (theirs, ours))
    correlation = F.cosine_similarity(theirs, ours).min()
    return f"{correlation:.5f}" if scaled else f"{correlation:.5f}, {difference:.0e}"


def measure(
    runs: dict[str, Variant], rounds: int, device: torch.device
) -> tuple[dict[str, float], dict[str, float | None], dict[str, Any]]:
    results: dict[str, Any] = {}

    def warm_up(name: str) -> None:
        # With `fast`, the second or third call compiles.
        for _ in range(4 if name.endswith("fast") else 1):
            results[name] = runs[name].run()

    memory = {name: peak_memory(partial(warm_up, name), device) for name in runs}
    fastest = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, variant in runs.items():
            fastest[name] = min(fastest[name], timed(variant.run, device))
    return fastest, memory, results


def report(runs: dict[str, Variant], rounds: int, batch: int, device: torch.device) -> None:
    fastest, memory, results = measure(runs, rounds, device)
    beside = AUTHORS in runs
    print(
        f"\n| batch {batch} | ms | forwards | peak MB "
        f"{f'| times faster than {AUTHORS} ' * beside}| agreement |"
    )
    print(f"| --- | ---: | ---: | ---: {'| ---: ' * beside}| --- |")
    for name, seconds in sorted(fastest.items(), key=lambda pair: pair[1]):
        _, like, scaled = runs[name]
        peak = memory[name]
        cells = [
            name,
            f"{seconds * 1e3:.1f}",
            f"{seconds / fastest['forward']:.1f}",
            "?" if peak is None else f"{peak / 1e6:.0f}",
            *([f"{fastest[AUTHORS] / seconds:.1f}"] if beside else []),
            f"{agreement(results[name], results[like], scaled)} with {like}"
            if like in results
            else "",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224", help="a ViT of timm")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of integrated gradients")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tf32", action="store_true", help="let float32 products use TF32")
    parser.add_argument("--fast", action="store_true", help="also what is compiled and run again")
    parser.add_argument("--memory", type=float, help="gibibytes that an explanation may keep")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows, by name")
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
        report(collected(options, model, pixels), options.rounds, batch, device)


if __name__ == "__main__":
    main()
