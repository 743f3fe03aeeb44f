"""Small models that take images and texts, written by hand."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS = 16, 2


class Layer(nn.Module):
    """Attention and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        shape = *x.shape[:2], HEADS, -1
        q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, mask)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.words = nn.Embedding(50, WIDTH)
        self.positions = nn.Parameter(torch.randn(16, WIDTH))

    def embed(self, values: Tensor) -> Tensor:
        embedded = self.words(values) if values.dim() == 2 else self.patches(values).flatten(2).mT
        return embedded + self.positions[: embedded.shape[1]]


class TwoTowers(_Embeddings):
    """Compares each image with each text, as CLIP does: two layers for images, one for texts."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(Layer(), Layer())
        self.texts = nn.Sequential(Layer())

    def forward(self, pixels: Tensor, ids: Tensor) -> dict[str, Tensor]:
        image = F.normalize(self.images(self.embed(pixels)).mean(1), dim=-1)
        text = F.normalize(self.texts(self.embed(ids)).mean(1), dim=-1)
        per_image = 10 * image @ text.T
        return {"logits_per_image": per_image, "logits_per_text": per_image.T}


class OneSequence(_Embeddings):
    """Reads the words of a text and the patches of its image as one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        tokens = torch.cat([self.embed(ids), self.embed(pixels)], 1)
        return self.head(self.layers(tokens).mean(1))


def make_pair(images: int = 2, texts: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Images of 2 x 2 patches and texts of 5 words."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (texts, 5), generator=generator)
    return {"pixels": torch.randn(images, 3, 8, 8, generator=generator), "ids": ids}
