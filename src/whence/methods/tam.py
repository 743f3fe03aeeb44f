"""Token Activation Map: what image tokens say of the written word (Li et al.; ICCV 2025)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.layout import FoundLayout
from whence.methods.registry import Method, register
from whence.targets import ReadScalars, TokenScalar
from whence.tracing.ops.products import HALF_TYPES

_NOT_A_TOKEN = (
    "Method 'tam' explains a single token of a vision-language model, as targets.token() or "
    "explain_generation names it, and this target is {}."
)
_NO_IMAGE = (
    "Method 'tam' explains language models that read an image as tokens between their words, and "
    "here no token is known to stand for a part of an image."
)
_TINY = 1e-8


@register("tam")
@dataclass(frozen=True)
class Tam(Method):
    r"""Logit of the written token at each image token, less what earlier words explain of it.

    With :math:`z_{p,c}` the logit of token c of the vocabulary at position p, the activation of the
    image tokens v for the written token c is :math:`a_c(v) = \max(z_{v,c}, 0)`. Words i before it
    have activations of their own, :math:`a_{c_i}`, which interfere. They are estimated and taken
    out, words that are the same token as c excepted:

    .. math::
        b = \sum_i \frac{w_i}{\sum_j w_j} a_{c_i}, \quad w_i = \max(z_{p_i,c}, 0), \qquad
        a = \max(a_c - s\, b, 0), \quad s = \arg\min_s \lVert a_c - s\, b \rVert^2.

    A word of the prompt is read where it stands, a generated one where it was told: at the position
    before. Words of the prompt are those from the last image to the next special token, or to the
    end; of the first one, the map is that of the highest token there. Scores of the image and of
    the words, :math:`w_i`, are then scaled together to [0, 1]. Each map is denoised by a rank
    Gaussian filter: the nine values around a place are sorted, and averaged with weights
    :math:`\exp(-k^2 / 2\sigma^2)`, k the rank from the median, :math:`\sigma` their standard
    deviation divided by their mean.
    """

    needs = ("token_logits",)
    citation = (
        "Li, Wang, Ding, Li: Token Activation Map to Visually Explain Multimodal LLMs, ICCV 2025"
    )
    cost = "1"
    inputs = ("image prompt",)
    unsteady_types = HALF_TYPES  # not measured

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        scalars = _list_token_scalars(evidence)
        marks = _mark_images(evidence, scalars[0])
        specials = _list_special_ids(scalars[0])
        rows = []
        for scalar in scalars:
            samples = [
                self._score_sample(evidence, scalar, sample, marks[sample], specials)
                for sample in range(evidence.batch)
            ]
            rows.append(torch.stack(samples))
        return torch.stack(rows)

    def _score_sample(
        self,
        evidence: Evidence,
        scalar: TokenScalar,
        sample: int,
        is_image: Tensor,
        specials: frozenset[int],
    ) -> Tensor:
        """Score the tokens of one sample for one target: (tokens,)."""
        sequence = scalar.place.sequence
        assert sequence.ids is not None  # _list_token_scalars sees to it
        ids, real = sequence.ids[sample].tolist(), sequence.mask[sample].tolist()
        at, end = scalar.get_last_row(sample), scalar.prompt_ends[sample]
        logits, token = evidence.token_logits[sample], scalar.indices[sample]
        images = is_image.nonzero()[:, 0]
        words = _list_words(ids, real, is_image.tolist(), specials, end, at)
        words = [
            word._replace(token=int(logits[word.read_at].argmax())) if word.is_first else word
            for word in words
        ]
        context = [word for word in words if ids[word.position] != token]
        activation, found = compute_activations(
            logits, images, token, [w.read_at for w in words], _list_places(context)
        )
        scores = logits.new_zeros(len(ids), dtype=activation.dtype)
        scores[images] = activation
        scores[[word.position for word in words]] = found
        layout = evidence.layout
        return scores if layout.grid is None else _denoise(scores, layout, sample, is_image)


class _Word(NamedTuple):
    """A word before the written token: where it stands, where it is read, and its map's token."""

    position: int
    read_at: int
    token: int
    is_first: bool = False


def _list_places(words: list[_Word]) -> list[tuple[int, int]]:
    return [(word.read_at, word.token) for word in words]


def compute_activations(
    logits: Tensor, images: Tensor, token: int, words: list[int], context: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Activations of image tokens without interference, and of words, scaled to [0, 1] together.

    Args:
        logits: (tokens, vocabulary).
        images: The positions of image tokens.
        token: The written token.
        words: The positions where words are read.
        context: Words that interfere: where each is read, and the token whose map it has.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    of_token = logits[:, token].to(dtype).clamp(min=0)
    activation, of_words = of_token[images], of_token[words]
    if context:
        places, tokens = (list(numbers) for numbers in zip(*context, strict=True))
        weights = of_token[places]
        weights = weights / (weights.sum() + _TINY)
        maps = logits[images][:, tokens].to(dtype).clamp(min=0)
        interference = maps @ weights
        power = interference @ interference
        scale = activation @ interference / torch.where(power > 0, power, 1)
        activation = (activation - scale * interference).clamp(min=0)
    both = torch.cat([activation, of_words])
    lowest, highest = both.min(), both.max()
    both = (both - lowest) / torch.where(highest > lowest, highest - lowest, 1)
    return both[: len(images)], both[len(images) :]


def filter_ranks(maps: Tensor) -> Tensor:
    """Denoise maps, (..., height, width), by the rank Gaussian filter of 3 x 3 places.

    Beyond the border, maps are reflected. Where all nine values are the same, that is the result.
    """
    for axis in (-2, -1):
        maps = maps.index_select(axis, _reflect(maps.shape[axis], maps.device))
    windows = maps.unfold(-2, 3, 1).unfold(-2, 3, 1).flatten(-2)
    windows = windows.sort(-1).values
    mean = windows.mean(-1, keepdim=True)
    sigma = windows.std(-1, correction=0, keepdim=True) / torch.where(mean > 0, mean, 1)
    ranks = torch.arange(9, device=maps.device, dtype=maps.dtype) - 4
    # The smallest sigma leaves the median alone.
    spread = (2 * sigma**2).clamp(min=torch.finfo(maps.dtype).tiny)
    kernel = torch.exp(-(ranks**2) / spread)
    filtered = (windows * kernel).sum(-1) / kernel.sum(-1)
    return torch.where(mean[..., 0] > 0, filtered, 0)


def _reflect(length: int, device: torch.device) -> Tensor:
    """Indices of a line with one more at both ends, which mirror what is next to the last."""
    beyond = min(1, length - 1)
    return torch.tensor([beyond, *range(length), length - 1 - beyond], device=device)


def _list_token_scalars(evidence: Evidence) -> list[TokenScalar]:
    """The targets, which are single tokens of a text that the model reads as ids."""
    targets = evidence.targets
    if not isinstance(targets, ReadScalars):
        raise WhenceError(_NOT_A_TOKEN.format("a class"))
    found = []
    for target, against in targets.contrasts:
        if against is not None:
            raise WhenceError(_NOT_A_TOKEN.format("a token against another: leave out against="))
        if not isinstance(target, TokenScalar):
            raise WhenceError(_NOT_A_TOKEN.format("none"))
        found.append(target)
    place = found[0].place
    if place.sequence.ids is None or place.length != evidence.tokens:
        raise WhenceError(_NO_IMAGE)
    return found


def _mark_images(evidence: Evidence, scalar: TokenScalar) -> Tensor:
    """Mark the tokens that stand for parts of images, (batch, tokens)."""
    ids, mask = scalar.place.sequence.ids, scalar.place.sequence.mask
    assert ids is not None
    stands = evidence.layout.mark_unit_tokens(ids.device).expand(len(ids), -1)
    is_text = not evidence.layout.axes
    # In a batch, a token may stand for a part that only other samples have.
    marked = (~stands if is_text else stands & evidence.token_mask) & mask.to(ids.device)
    if evidence.trace.at_text is not None or not bool(marked.any(1).all()):
        raise WhenceError(_NO_IMAGE)
    return marked


def _list_special_ids(scalar: TokenScalar) -> frozenset[int]:
    """Ids of special tokens, as far as the tokenizer knows them."""
    return frozenset(getattr(scalar.place.tokenizer, "all_special_ids", ()))


def _list_words(
    ids: list[int],
    real: list[bool],
    is_image: list[bool],
    specials: frozenset[int],
    end: int,
    at: int,
) -> list[_Word]:
    """The words before the written token: those of the prompt, then those that were generated.

    Args:
        ids: Of all tokens.
        real: Whether each is no padding.
        is_image: Whether each stands for a part of an image.
        specials: Ids of special tokens.
        end: Where the first generated token stands.
        at: Where the explained token is told.
    """
    placeholders = {one for one, is_part in zip(ids, is_image, strict=True) if is_part}
    last = max(n for n in range(end) if ids[n] in placeholders)
    start = next((n for n in range(last + 1, end) if ids[n] not in specials), end)
    stop = next((n for n in range(start, end) if ids[n] in specials), end)
    # What the prompt's last token tells is the first generated one.
    prompt = [n for n in range(start, min(stop, end - 1)) if real[n]]
    words = [_Word(n, n, ids[n], n == prompt[0]) for n in prompt]
    return words + [_Word(n, n - 1, ids[n]) for n in range(end, at + 1)]


def _denoise(scores: Tensor, layout: FoundLayout, sample: int, is_image: Tensor) -> Tensor:
    """Filter the map of each image or frame of a sample; holes around smaller ones stay out."""
    assert layout.grid is not None
    units = torch.tensor(layout.units[sample if len(layout.units) > 1 else 0], device=scores.device)
    units = torch.where((units >= 0) & is_image[units], units, -1)
    filtered = scores.clone()
    for tokens in units.reshape(-1, *layout.grid[-2:]):
        rows, columns = ((tokens >= 0).any(axis).nonzero()[:, 0] for axis in (1, 0))
        if len(rows):
            own = tokens[rows[:, None], columns]
            stands = own >= 0
            found = filter_ranks(torch.where(stands, scores[own], 0))
            filtered[own[stands]] = found[stands]
    return filtered
