"""Measure explanations by other libraries and by whence in one run, on the same weights.

    python benchmarks/peers.py --batch 1 8 --authors path/to/Transformer-Explainability

The model is a ViT of timm with random weights. The authors' code is read from a checkout that you
name; Captum, pytorch-grad-cam and lxt are used where they are installed, and left out, with a line
that says how to get them, where not. All take turns within each round, and the fastest round
counts. Where two rows compute the same quantity, their agreement is the correlation of the two
maps, the lowest among samples, and their largest difference relative to the largest score.

On text, lxt supports models of its own: compare_attnlrp_lxt.py compares the numbers there.
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
from timing.memory import measure_peak
from timing.rounds import measure_seconds
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

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
    """A row of the table.

    Attributes:
        run: Computes the explanation.
        like: The row of whence that computes the same quantity.
        scaled: Whether scores have a scale of their own, so that differences mean nothing.
    """

    run: Callable[[], Any]
    like: str = ""
    scaled: bool = False


class ToGrid(nn.Module):
    """Turns tokens after a class token into a feature map, which Captum's Grad-CAM needs."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.prefix = torch.empty(0)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        self.prefix = tokens[:, :1]
        return to_patch_grid(tokens, self.rows)


class FromGrid(nn.Module):
    """Turns the feature map back into tokens."""

    def __init__(self, to_grid: ToGrid) -> None:
        super().__init__()
        self.to_grid = [to_grid]  # in a list, so as not to be one of its modules

    @override
    def forward(self, grid: Tensor) -> Tensor:
        return torch.cat([self.to_grid[0].prefix, grid.flatten(2).mT], 1)


def to_patch_grid(tokens: Tensor, rows: int) -> Tensor:
    return tokens[:, 1:].mT.reshape(len(tokens), -1, rows, rows)


def sum_over_patches(pixels: Tensor, rows: int) -> Tensor:
    """Sum values of pixels, (batch, height, width), over each patch."""
    area = pixels[0].numel() / rows**2
    return area * F.adaptive_avg_pool2d(pixels[:, None], rows)[:, 0].flatten(1)


def compute_gradient(model: nn.Module, pixels: Tensor) -> Tensor:
    leaf = pixels.clone().requires_grad_()
    return torch.autograd.grad(model(leaf)[:, TARGET].sum(), leaf)[0]


def list_ours(model: nn.Module, pixels: Tensor, options: argparse.Namespace) -> dict[str, Variant]:
    def explain_by(method: str, compile: bool = False, like: str = "", **request: Any) -> Variant:
        explainer = Explainer(model, compile=False)  # one a row: it keeps its compiled programs
        request |= {"target": TARGET, "method": method, "memory": options.memory}
        if compile:
            explainer.compile(pixels, **request)

        def run() -> Tensor:
            return explainer.explain(pixels, **request).scores

        return Variant(run, like)

    found = {
        "whence": explain_by("whence"),
        "tiba, stable": explain_by("tiba"),
        "tiba, reference": explain_by("tiba", rules="reference"),
        "gae": explain_by("gae"),
        "rollout": explain_by("rollout"),
        "attnlrp": explain_by("attnlrp"),
        "gradcam": explain_by("gradcam"),
        "integrated_gradients": explain_by("integrated_gradients", steps=options.steps),
    }
    if options.compile:
        names = ("whence", "tiba, stable", "tiba, reference", "gae", "attnlrp")
        for name in names:
            if options.only and f"{name}, compiled" not in options.only:
                continue  # to compile takes long
            method, _, rules = name.partition(", ")
            request = {"rules": rules} if rules else {}
            found[f"{name}, compiled"] = explain_by(method, compile=True, like=name, **request)
    return found


def list_plain(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    def forward() -> None:
        with torch.no_grad():
            model(pixels)

    return {
        "forward": Variant(forward),
        "forward + backward": Variant(lambda: compute_gradient(model, pixels)),
    }


def list_captum(model: nn.Module, pixels: Tensor, steps: int) -> dict[str, Variant]:
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
        return sum_over_patches(found.sum(1), rows)

    return {
        "Captum, Grad-CAM": Variant(gradcam, "gradcam"),
        "Captum, integrated gradients": Variant(integrated, "integrated_gradients"),
    }


def list_grad_cam(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    rows = model.patch_embed.grid_size[0]
    own = copy.deepcopy(model)  # hooks stay on it
    cam = GradCAM(own, [own.blocks[-1].norm1], reshape_transform=lambda t: to_patch_grid(t, rows))
    targets = [ClassifierOutputTarget(TARGET)] * len(pixels)

    def run() -> Tensor:
        return sum_over_patches(torch.from_numpy(cam(pixels, targets)), rows)

    return {"pytorch-grad-cam, Grad-CAM": Variant(run, "gradcam", scaled=True)}


def list_lxt(model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    # Its list of supported models, none of them a ViT by AttnLRP, wants transformers 4.
    sys.modules.setdefault("lxt.efficient.models", MagicMock())
    from lxt.efficient import patches

    norm, activation = type(model.norm), type(model.blocks[0].mlp.act)
    plain_attention = F.scaled_dot_product_attention
    attention = patches.wrap_attention_forward(
        lambda _, *args, **options: plain_attention(*args, **options)
    )

    def run() -> Tensor:
        # Classes are patched, as lxt does it, for this call only.
        with (
            patch.object(norm, "forward", patches.layer_norm_forward),
            patch.object(activation, "original_forward", activation.forward, create=True),
            patch.object(activation, "forward", patches.non_linear_forward),
            patch.object(F, "scaled_dot_product_attention", partial(attention, None)),
        ):
            relevance = pixels * compute_gradient(model, pixels)
        return sum_over_patches(relevance.sum(1), model.patch_embed.grid_size[0])

    return {"lxt, AttnLRP": Variant(run, "attnlrp")}


@contextmanager
def keep_on_device(device: torch.device):
    """Keep tensors on the CPU where the authors' code asks for CUDA by name."""
    if device.type == "cuda":
        yield
    else:
        with patch.object(Tensor, "cuda", lambda self, *_, **__: self):
            yield


def list_authors(model: nn.Module, pixels: Tensor, checkout: Path) -> dict[str, Variant]:
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
        with keep_on_device(pixels.device):
            maps = [  # it takes one image at a time
                generator.generate_LRP(one[None], TARGET, method="transformer_attribution")
                for one in pixels
            ]
        return torch.cat(maps).detach()

    return {AUTHORS: Variant(run, "tiba, reference")}


def list_rows(options: argparse.Namespace, model: nn.Module, pixels: Tensor) -> dict[str, Variant]:
    found = list_plain(model, pixels) | list_ours(model, pixels, options)
    peers: dict[str, Callable[[], dict[str, Variant]]] = {
        "Captum": lambda: list_captum(model, pixels, options.steps),
        "pytorch-grad-cam": lambda: list_grad_cam(model, pixels),
        "lxt": lambda: list_lxt(model, pixels),
    }
    if options.authors is not None:
        peers[AUTHORS] = lambda: list_authors(model, pixels, options.authors)
    for name, peer in peers.items():
        try:
            found |= peer()
        except ModuleNotFoundError as error:
            print(f"Without {name}: {error} (pip install {INSTALL[name]})")
        except (ImportError, RuntimeError) as error:
            print(f"Without {name}: {str(error).splitlines()[0]}")
    wanted = {"forward", *(options.only or found)}
    return {name: variant for name, variant in found.items() if name in wanted}


def compare(theirs: Tensor, ours: Tensor, scaled: bool) -> str:
    """Describe the agreement of two maps: lowest correlation of a sample, largest difference."""
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
        # The first calls compile.
        for _ in range(4 if name.endswith("compiled") else 1):
            results[name] = runs[name].run()

    memory = {name: measure_peak(partial(warm_up, name), device).used for name in runs}
    fastest = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, variant in runs.items():
            fastest[name] = min(fastest[name], measure_seconds(variant.run, device))
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
            f"{compare(results[name], results[like], scaled)} with {like}"
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
    parser.add_argument("--compile", action="store_true", help="also compiled explanations")
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
        report(list_rows(options, model, pixels), options.rounds, batch, device)


if __name__ == "__main__":
    main()
