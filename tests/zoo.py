"""Small random models of every family that whence explains, each with a batch of inputs."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor, nn

BATCH = 3
DEPTH = 3
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "num_labels": 3,
}


@dataclass
class Case:
    """A model with a batch of inputs, its own attention maps and its expected layout.

    Attributes:
        build: Builds the model.
        inputs: Makes a batch.
        attention: Computes logits and the library's own attention maps, with gradients enabled.
        grid, prefix, pooled: The expected layout.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    attention: Callable[[nn.Module, Any], tuple[Tensor, list[Tensor]]]
    grid: tuple[int, int] | None = (4, 4)
    prefix: int = 1
    pooled: tuple[int, ...] = (0,)


def build_model(case: Case) -> nn.Module:
    """Build the model, with weights large enough that no activation is nearly zero."""
    torch.manual_seed(1)
    model = case.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def find_block_modules(model: nn.Module) -> nn.Module:
    """Find the modules that the residual stream enters (ALBERT calls one many times)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and (
            len(module) == DEPTH or name.endswith("albert_layer_groups")
        ):
            return module
    raise AssertionError("no blocks found")


def run_model(model: nn.Module, inputs: Any, **more: Any) -> Any:
    return model(inputs, **more) if isinstance(inputs, Tensor) else model(**inputs, **more)


def select_samples(inputs: Any, index: slice) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[index]
    return {name: value[index] for name, value in inputs.items()}


def make_images(*size: int) -> Tensor:
    return torch.randn(BATCH, 3, *size, generator=torch.Generator().manual_seed(2))


def make_texts(length: int = 10) -> dict[str, Tensor]:
    """Make three texts, of which the last two are padded."""
    ids = torch.randint(5, 90, (BATCH, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, 9:] = 0
    return {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}


# transformers ------------------------------------------------------------------------------------


def with_attention(model: Any, implementation: str) -> nn.Module:
    """Copy a model of transformers, with another implementation of attention."""
    if hasattr(model, "set_attn_implementation"):
        copied = copy.deepcopy(model)
        copied.set_attn_implementation(implementation)
        return copied
    # Releases before 4.54 choose it when a model is built, and some models then have one alone.
    if not getattr(model, f"_supports_{implementation}", True):
        pytest.skip(f"this release of transformers has no {implementation} for this model")
    config = copy.deepcopy(model.config)
    built = type(model)._from_config(config, attn_implementation=implementation)
    built.load_state_dict(model.state_dict())
    return built.to(next(model.parameters()).dtype).train(model.training)


def _eager_attention(model: nn.Module, inputs: Any) -> tuple[Tensor, list[Tensor]]:
    eager = with_attention(model, "eager")
    output = run_model(eager, inputs, output_attentions=True)
    return output.logits, list(output.attentions)


def _hugging_face(
    config: str, model: str, attention: str, sizes: dict[str, Any], **facts: Any
) -> Case:
    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers")
        configuration = getattr(transformers, config)(**sizes)
        try:
            return getattr(transformers, model)._from_config(
                configuration, attn_implementation=attention
            )
        except ValueError as error:
            pytest.skip(f"this release of transformers: {error}")

    return Case(build, facts.pop("inputs"), _eager_attention, **facts)


def _vision(name: str, model: str, **facts: Any) -> dict[str, Case]:
    return {
        f"{model}-{attention}": _hugging_face(
            f"{name}Config",
            model,
            attention,
            VISION,
            inputs=lambda: {"pixel_values": make_images(32, 32)},
            **facts,
        )
        for attention in ("sdpa", "eager")
    }


def _text(name: str, only: str = "", **sizes: Any) -> dict[str, Case]:
    return {
        f"{name}-{attention}": _hugging_face(
            f"{name}Config",
            f"{name}ForSequenceClassification",
            attention,
            {**TEXT, **sizes} if name != "DistilBert" else sizes,
            inputs=make_texts,
            grid=None,
            prefix=0,
        )
        for attention in ("sdpa", "eager")
        if only in ("", attention)
    }


_DISTILBERT = {
    "dim": 32,
    "n_layers": DEPTH,
    "n_heads": 4,
    "hidden_dim": 48,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "num_labels": 3,
}
_PATCHES = tuple(range(1, 17))
_RELEASE = tuple(map(int, version("transformers").split(".")[:2]))


# timm and torchvision ----------------------------------------------------------------------------


def _timm_attention(model: nn.Module, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Record the maps that enter the attention dropout where attention is not fused."""
    plain, maps = copy.deepcopy(model), []
    for block in plain.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _m, args, _o: maps.append(args[0]))
    return run_model(plain, inputs), maps


def _timm(name: str, fused: bool, size: tuple[int, int] = (32, 32), **options: Any) -> Case:
    facts = {k: options.pop(k) for k in ("grid", "prefix", "pooled") if k in options}

    def build() -> nn.Module:
        timm = pytest.importorskip("timm")
        model = timm.create_model(
            name, img_size=size, patch_size=8, depth=DEPTH, num_classes=5, **options
        )
        for block in model.blocks:
            block.attn.fused_attn = fused
        return model

    return Case(build, lambda: make_images(*size), _timm_attention, **facts)


def _torchvision_attention(model: nn.Module, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Compute the maps a second time, so they are not those that led to the logits."""
    maps: list[Tensor] = []

    def record(module: nn.MultiheadAttention, args: tuple[Tensor, ...], _: Any) -> None:
        maps.append(
            nn.MultiheadAttention.forward(
                module, *args, need_weights=True, average_attn_weights=False
            )[1]
        )

    plain = copy.deepcopy(model)
    for module in plain.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.register_forward_hook(record)
    return run_model(plain, inputs), maps


def _torchvision_vit() -> nn.Module:
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.VisionTransformer(32, 8, DEPTH, 4, 32, 48, num_classes=5)


# hand-written ------------------------------------------------------------------------------------


class HandWrittenBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Parameter(torch.randn(3, heads, width, width // heads) * width**-0.5)
        self.out = nn.Parameter(torch.randn(heads, width // heads, width) * width**-0.5)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.ReLU(inplace=True), nn.Linear(48, width))
        self.maps: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (torch.einsum("bnd,hde->bhne", h, w) for w in self.qkv)
        attention = torch.einsum("bhie,bhje->bhij", q, k) / q.shape[-1] ** 0.5
        attention = attention.softmax(dim=-1)
        if self.maps is not None:
            self.maps.append(attention)
        mixed = torch.einsum("...ij,...jd->...id", attention, v)
        added = torch.einsum("bhid,hdw->biw", mixed, self.out)
        added += x
        result = self.mlp(self.norm2(added))
        result += added
        return result


class HandWrittenViT(nn.Module):
    """Patches by reshaping, a class token, attention in einsum, in-place additions."""

    def __init__(self, width: int = 32, heads: int = 4, patch: int = 8, size: int = 32) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, width)
        self.class_token = nn.Parameter(torch.randn(width))
        self.positions = nn.Parameter(torch.randn((size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(HandWrittenBlock(width, heads) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, image: Tensor) -> Tensor:
        batch, channels, height, width = image.shape
        p = self.patch
        x = image.reshape(batch, channels, height // p, p, width // p, p)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x = self.embed(x)
        x = torch.cat([self.class_token.expand(batch, 1, -1), x], 1)
        x += self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def _hand_written_attention(model: nn.Module, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    plain, maps = copy.deepcopy(model), []
    for block in plain.blocks:
        block.maps = maps
    return run_model(plain, inputs), maps


CASES: dict[str, Case] = {
    **_vision("ViT", "ViTForImageClassification"),
    **_vision("DeiT", "DeiTForImageClassification", prefix=2),
    **_vision("DeiT", "DeiTForImageClassificationWithTeacher", prefix=2, pooled=(0, 1)),
    **_vision("Beit", "BeitForImageClassification", pooled=_PATCHES),
    **_vision("Dinov2", "Dinov2ForImageClassification", pooled=(0, *_PATCHES)),
    **_vision(
        "Dinov2WithRegisters",
        "Dinov2WithRegistersForImageClassification",
        prefix=5,
        # Before, the registers were averaged, too.
        pooled=(0, *range(5 if _RELEASE >= (4, 52) else 1, 21)),
    ),
    **_text("Bert"),
    **_text("Roberta"),
    **_text("Electra", embedding_size=16),
    **_text("Albert", embedding_size=16),
    **_text("MPNet", only="eager"),
    **_text("DistilBert", **_DISTILBERT),
    **{
        f"timm-{name}-{'fused' if fused else 'unfused'}": _timm(model, fused, **options)
        for fused in (True, False)
        for name, model, options in (
            ("vit", "vit_tiny_patch16_224", {}),
            (
                "vit-average",
                "vit_tiny_patch16_224",
                {
                    "global_pool": "avg",
                    "class_token": False,
                    "prefix": 0,
                    "pooled": tuple(range(16)),
                },
            ),
            ("vit-registers", "vit_tiny_patch16_224", {"reg_tokens": 4, "prefix": 5}),
            ("vit-rectangle", "vit_tiny_patch16_224", {"size": (32, 48), "grid": (4, 6)}),
            (
                "deit-distilled",
                "deit_tiny_distilled_patch16_224",
                {"prefix": 2, "pooled": (0, 1)},
            ),
        )
    },
    "torchvision-vit": Case(_torchvision_vit, lambda: make_images(32, 32), _torchvision_attention),
    "hand-written": Case(HandWrittenViT, lambda: make_images(32, 32), _hand_written_attention),
}
