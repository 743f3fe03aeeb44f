"""Packed images: a language model may take the images of all samples as one tensor.

Its rows are then images, or patches of images of different sizes, and not samples: a prompt may
have two images or none. Here they are unpacked to images beside each other, (batch, images, ...),
on a canvas that holds the largest; and a module around the model packs them again.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from whence.engine.request import ImageSizes, Subject
from whence.engine.targets import is_generative
from whence.errors import WhenceError
from whence.evidence.sample_rows import SampleRows
from whence.inputs.arguments import ModelArguments
from whence.tracing import copy_arguments, replicate, unwrap_model
from whence.tracing.logits import find_logits

_IDS = "input_ids"
# The sizes of flattened images, in patches: frames, rows and columns.
_SIZES_OF = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
_COUNTS = "image_counts"


class UnpackedImages(NamedTuple):
    """A model and its arguments, in which each sample has a row of images.

    Attributes:
        model: Packs the images, and runs the model.
        arguments: Its arguments.
        sizes: For each sample, height and width of each of its images.
    """

    model: ImagePacker
    arguments: ModelArguments
    sizes: ImageSizes

    @property
    def has_rows(self) -> bool:
        """Whether all tensors among the arguments have one row for each sample."""
        tensors = self.arguments.named_tensors.values()
        return all(x.dim() > 0 and len(x) == len(self.sizes) for x in tensors)


def unpack_request(
    subject: Subject, arguments: ModelArguments, needs_rows: bool = False
) -> tuple[Subject, ModelArguments, ImageSizes | None]:
    """The model and its arguments with unpacked images, and their sizes; as given if none are.

    Args:
        subject: The model.
        arguments: Its arguments.
        needs_rows: Whether samples are run in rows of their own, so that images beside an explained
            text are unpacked, too.
    """
    generates = is_generative(subject)
    found = unpack_images(subject.model, arguments, needs_rows) if generates else None
    if found is None:
        return subject, arguments, None
    rows = SampleRows(found.arguments.named_tensors) if found.has_rows else subject.rows
    subject = dataclasses.replace(subject, model=found.model, rows=rows)
    arguments = found.arguments
    if found.has_rows and all(found.sizes):  # what has no image cannot be explained apart
        arguments = arguments.with_rows(arguments.named_tensors)
    return subject, arguments, found.sizes


def unpack_images(
    model: nn.Module, arguments: ModelArguments, beside: bool = False
) -> UnpackedImages | None:
    """Unpack the explained images of a language model; None if there is one for each sample.

    With `beside`, flattened images are unpacked that are not explained themselves.

    Raises:
        WhenceError: It cannot be told which image belongs to which sample.
    """
    ids = arguments.kwargs.get(_IDS)
    names = [name for name in arguments.explained_names if isinstance(name, str)]
    images = [name for name in names if arguments.kwargs[name].is_floating_point()]
    if beside and not images:
        images = [name for name in _SIZES_OF if isinstance(arguments.kwargs.get(name), Tensor)]
    if not isinstance(ids, Tensor) or ids.dim() != 2 or len(images) != 1:
        return None
    (name,), batch = images, len(ids)
    pixels = arguments.kwargs[name]
    grid = arguments.kwargs.get(_SIZES_OF.get(name, ""))
    is_flat = pixels.dim() == 2 and isinstance(grid, Tensor)
    if not is_flat and (len(pixels) == batch and _have_one_image_each(model, ids)):
        return None
    owners = _find_owners(model, arguments, name, batch)
    if is_flat:
        return _unpack_patches(model, arguments, name, owners)
    if owners.tolist() == list(range(batch)):
        return None
    return _unpack_rows(model, arguments, name, owners)


def _have_one_image_each(model: nn.Module, ids: Tensor) -> bool:
    """Whether no prompt of a batch has other image tokens than the others, as far as is known."""
    config = getattr(unwrap_model(model), "config", None)
    for key in ("image_token_id", "image_token_index"):
        token = getattr(config, key, None)
        if isinstance(token, int):
            counts = (ids == token).sum(1)
            return bool((counts == counts[0]).all())
    return True


def _find_owners(model: nn.Module, arguments: ModelArguments, name: str, batch: int) -> Tensor:
    """The sample of each row of packed images: the one whose logits depend on it."""
    pixels = arguments.kwargs[name]
    if batch == 1:
        return torch.zeros(len(pixels), dtype=torch.long)
    with torch.inference_mode(False), torch.enable_grad():
        leaf = pixels.detach().clone().requires_grad_()
        args, kwargs = copy_arguments(arguments.args, {**arguments.kwargs, name: leaf})
        logits = find_logits(replicate(model)(*args, **{**kwargs, name: leaf}))
        touched = []
        for sample in range(batch):
            (gradient,) = torch.autograd.grad(
                logits[sample].square().sum(), leaf, retain_graph=True, allow_unused=True
            )
            gradient = torch.zeros_like(leaf) if gradient is None else gradient
            touched.append(gradient.flatten(1).any(1).cpu())
    of_sample = torch.stack(touched)
    owners = of_sample.int().argmax(0)
    if bool((of_sample.sum(0) > 1).any()) or bool((owners.diff() < 0).any()):
        raise WhenceError(
            f"It cannot be told which of the {len(pixels)} rows of '{name}' belong to which of the "
            f"{batch} samples: explain them one by one."
        )
    return owners


# Images of one size ------------------------------------------------------------------------------


def _unpack_rows(
    model: nn.Module, arguments: ModelArguments, name: str, owners: Tensor
) -> UnpackedImages:
    """Images, (images, ...), as (batch, most images of a sample, ...)."""
    kwargs, ids = dict(arguments.kwargs), arguments.kwargs[_IDS]
    counts = torch.bincount(owners, minlength=len(ids))
    packed = [n for n, value in kwargs.items() if _is_of_images(value, len(owners), ids)]
    for one in packed:
        kwargs[one] = _spread(kwargs[one], counts)
    kwargs[_COUNTS] = counts.to(ids.device)
    height, width = (int(side) for side in arguments.kwargs[name].shape[-2:])
    sizes = [[(height, width)] * int(count) for count in counts]
    packer = _RowPacker(unwrap_model(model), tuple(packed))
    return UnpackedImages(packer, dataclasses.replace(arguments, kwargs=kwargs), sizes)


def _is_of_images(value: object, count: int, ids: Tensor) -> bool:
    """Whether an argument has a row for each image, and is none of the words."""
    if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != count:
        return False
    return value.shape[:2] != ids.shape


def _spread(rows: Tensor, counts: Tensor) -> Tensor:
    """Rows of all samples, one after the other, as (batch, most rows of a sample, ...)."""
    whole = rows.new_zeros(len(counts), int(counts.max()), *rows.shape[1:])
    for to, of_sample in zip(whole, torch.split(rows, counts.tolist()), strict=True):
        to[: len(of_sample)] = of_sample
    return whole


class ImagePacker(nn.Module):
    """A model that takes images as `UnpackedImages` has them. All else it knows is the model's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @override
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    @override
    def forward(self, **kwargs: Any) -> Any:
        """Run the model."""
        return self.model(**self.pack(kwargs))

    def pack(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the model takes them."""
        raise NotImplementedError


class _RowPacker(ImagePacker):
    """Packs the images of all samples, one after the other, and what else is known of each."""

    def __init__(self, model: nn.Module, packed: tuple[str, ...]) -> None:
        super().__init__(model)
        self.packed = packed

    @override
    def pack(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        counts = kwargs.pop(_COUNTS).tolist()
        for name in self.packed:
            rows = [row[:count] for row, count in zip(kwargs[name], counts, strict=True) if count]
            kwargs[name] = torch.cat(rows) if rows else None
        return kwargs


# Flattened images --------------------------------------------------------------------------------


class _PatchShape(NamedTuple):
    """How an image is cut into rows of patches.

    Patches that are merged into one token come one after the other.
    """

    channels: int
    frames: int
    side: int
    merged: int

    def flatten(self, image: Tensor) -> Tensor:
        """Cut an image, (frames, channels, height, width), into rows of patches."""
        times, (height, width) = len(image) // self.frames, image.shape[-2:]
        rows, columns = height // self.side // self.merged, width // self.side // self.merged
        squares = (rows, self.merged, self.side, columns, self.merged, self.side)
        patches = image.reshape(times, self.frames, self.channels, *squares)
        return patches.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, self.width)

    def restore(self, patches: Tensor, size: list[int]) -> Tensor:
        """Put rows of patches together, which have so many frames, rows and columns."""
        times, rows, columns = size
        squares = (rows // self.merged, columns // self.merged, self.merged, self.merged)
        image = patches.reshape(times, *squares, self.channels, self.frames, self.side, self.side)
        image = image.permute(0, 6, 5, 1, 3, 7, 2, 4, 8)
        height, width = rows * self.side, columns * self.side
        return image.reshape(times * self.frames, self.channels, height, width)

    @property
    def width(self) -> int:
        """The number of values of a patch."""
        return self.channels * self.frames * self.side**2


def _unpack_patches(
    model: nn.Module, arguments: ModelArguments, name: str, owners: Tensor
) -> UnpackedImages:
    """Rows of patches of images of any sizes as (batch, images, frames, channels, height, width).

    The dimension of images is left out where each sample has one.
    """
    kwargs = dict(arguments.kwargs)
    of_sizes, ids = _SIZES_OF[name], kwargs[_IDS]
    grids: Tensor = kwargs[of_sizes]
    shape = _find_patch_shape(model, kwargs[name], grids)
    lengths = grids.prod(1).tolist()
    parts = torch.split(kwargs[name], lengths)
    images = [shape.restore(part, size) for part, size in zip(parts, grids.tolist(), strict=True)]
    first = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    of_image = owners[first]
    counts = torch.bincount(of_image, minlength=len(ids))
    largest = [max(sides) for sides in zip(*(image.shape for image in images), strict=True)]
    canvas = kwargs[name].new_zeros(len(images), *largest)
    for to, image in zip(canvas, images, strict=True):
        frames, _, height, width = image.shape
        to[:frames, :, :height, :width] = image
    sizes: ImageSizes = [[] for _ in counts]
    for sample, image in zip(of_image.tolist(), images, strict=True):
        sizes[sample].append((image.shape[-2], image.shape[-1]))
    kwargs[name], kwargs[of_sizes] = _spread(canvas, counts), _spread(grids, counts)
    if bool((counts == 1).all()):
        kwargs[name] = kwargs[name][:, 0]
    packer = _PatchPacker(unwrap_model(model), name, shape)
    return UnpackedImages(packer, dataclasses.replace(arguments, kwargs=kwargs), sizes)


def _find_patch_shape(model: nn.Module, patches: Tensor, grids: Tensor) -> _PatchShape:
    """How a model's images were cut into patches, by its configuration."""
    config = getattr(getattr(unwrap_model(model), "config", None), "vision_config", None)
    side, frames = getattr(config, "patch_size", 0), getattr(config, "temporal_patch_size", 1)
    merged = getattr(config, "spatial_merge_size", 1)
    width, rows = patches.shape[1], int(grids.prod(1).sum())
    fits = isinstance(side, int) and side > 0 and width % (side**2 * frames) == 0
    if not fits or rows != len(patches) or bool((grids[:, 1:] % merged != 0).any()):
        raise WhenceError(
            f"The {len(patches)} patches of {width} values are not those of images of sizes "
            f"{grids.tolist()} in patches of {side}x{side} pixels, as the model's configuration "
            f"has them. Pass what the model's own processor returns."
        )
    return _PatchShape(width // (side**2 * frames), frames, side, merged)


class _PatchPacker(ImagePacker):
    """Cuts images into patches, and packs those of all samples."""

    def __init__(self, model: nn.Module, name: str, shape: _PatchShape) -> None:
        super().__init__(model)
        self.name, self.shape = name, shape

    @override
    def pack(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        of_sizes, shape = _SIZES_OF[self.name], self.shape
        images, grids, rows = kwargs[self.name], kwargs[of_sizes], []
        images = images[:, None] if images.dim() == 5 else images
        for of_sample, sizes in zip(images, grids.tolist(), strict=True):
            for image, (times, height, width) in zip(of_sample, sizes, strict=False):
                if times:
                    whole = image[: times * shape.frames, :, : height * shape.side]
                    rows.append(shape.flatten(whole[..., : width * shape.side]))
        flat = grids.flatten(0, 1)
        kwargs[self.name] = torch.cat(rows) if rows else None
        kwargs[of_sizes] = flat[flat[:, 0] > 0] if rows else None
        return kwargs
