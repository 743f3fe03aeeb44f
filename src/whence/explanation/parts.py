"""What an explanation consists of beside its scores: checks, kept evidence, explained classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whence._util.text import format_probability
from whence.targets import TargetArea


@dataclass(frozen=True)
class Check:
    """One thing that was verified about an explanation.

    Attributes:
        name: What was verified, in a word: ``"logits"``, ``"conservation"``, ``"completeness"``,
            ``"coverage"``, ``"dead"`` or ``"layout"``.
        figure: What was measured; the worst of all samples and classes.
        status: ``"passed"``, or ``"doubt"`` where the scores may not say what they seem to say.
            What fails is an error, and gives no explanation.
        sentence: What that means, and what would help.
    """

    name: str
    figure: float
    status: Literal["passed", "doubt"]
    sentence: str


@dataclass
class KeptEvidence:
    """What a method worked with. Lists are over attention sites or blocks, nearest the input first.

    Values of one target begin with the batch; of several classes with the batch, then the classes.
    What the method did not read is empty or None, but for attention, gradient and relevance.

    Attributes:
        pooling: (batch, tokens), weights of the rows that the classifier reads.
        attention: The attention maps, (batch, heads, queries, keys), with gradient and relevance.
        inputs: The pixels, or the embeddings of tokens, with gradient and relevance; one for each
            place where the model reads them.
        hidden: The residual stream before each block and after the last, (batch, tokens, width).
        value_input: What the values of each attention are computed from.
    """

    pooling: Tensor
    attention: list[Tensor] = field(default_factory=list)
    gradient: list[Tensor] = field(default_factory=list)
    relevance: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    input_gradient: list[Tensor] = field(default_factory=list)
    input_relevance: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    hidden_gradient: list[Tensor] = field(default_factory=list)
    hidden_relevance: list[Tensor] = field(default_factory=list)
    value_input: list[Tensor] = field(default_factory=list)
    value_input_gradient: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class ExplainedClass:
    """One class of one sample, with its scores.

    Attributes:
        index: Of the class.
        name: Its name, or "class 281"; without control characters.
        probability: Of the class; None where a single logit gives none.
        scores: (units,), finite.
        area: Where in the picture it lies, of a box, a place or a mask; None for whole pictures.
        figure: What is shown where there is no probability, such as "cosine 0.83".
    """

    index: int
    name: str
    probability: float | None
    scores: NDArray[np.float64]
    area: TargetArea | None = None
    figure: str = ""

    @property
    def percent(self) -> str:
        """The probability as a percentage, never rounded to certainty; or else the figure."""
        return format_probability(self.probability) or self.figure
