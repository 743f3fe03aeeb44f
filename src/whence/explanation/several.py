"""The answer about several inputs of a model at once."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from whence._util.files import check_ending
from whence._util.saved import SUFFIX, explain_damage, read_parts, write_parts
from whence.explanation.explanation import Explanation

_FORMAT = "whence explanations 1"


class Explanations(dict[str, Explanation]):
    """The explanations of several inputs of a model, by their names, from one forward pass."""

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, whole or not at all; its header holds the rest as JSON.

        Raises:
            WhenceError: The name ends otherwise, or the place cannot be written.
        """
        check_ending(path, (SUFFIX,))
        parts = {name: one._to_parts() for name, one in self.items()}
        facts = {name: saved for name, (saved, _) in parts.items()}
        tensors = {f"{n}/{key}": x for n, (_, held) in parts.items() for key, x in held.items()}
        write_parts(path, _FORMAT, facts, tensors)

    @classmethod
    def load(cls, path: str | Path) -> Explanations:
        """Read what `save` wrote.

        Raises:
            WhenceError: There is no such file, or it is damaged or does not hold explanations.
        """
        facts, tensors = read_parts(path, _FORMAT)
        with explain_damage(path):
            held: dict[str, dict[str, Tensor]] = {name: {} for name in facts}
            for place, tensor in tensors.items():
                name, _, key = place.rpartition("/")
                held[name][key] = tensor
            return cls((n, Explanation._from_parts(one, held[n])) for n, one in facts.items())
