"""The benchmark protocols, one a file, and how they are built by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import get_args, get_type_hints

from whence._util.near_names import suggest_names
from whence.benchmark.labels import LabelMapping, parse_classes
from whence.benchmark.protocols.base import AnyProtocol, BenchmarkProtocol
from whence.benchmark.protocols.localization import LocalizationProtocol
from whence.benchmark.protocols.perturbation import PerturbationProtocol
from whence.benchmark.protocols.randomization import RandomizationProtocol
from whence.benchmark.protocols.rationale import RationaleProtocol
from whence.benchmark.protocols.saco import SacoProtocol
from whence.benchmark.protocols.segmentation import SegmentationProtocol
from whence.benchmark.protocols.trust import TrustProtocol
from whence.errors import WhenceError

PROTOCOLS: dict[str, type[AnyProtocol]] = {
    kind.name: kind
    for kind in (
        PerturbationProtocol,
        SacoProtocol,
        SegmentationProtocol,
        LocalizationProtocol,
        RationaleProtocol,
        RandomizationProtocol,
        TrustProtocol,
    )
}

__all__ = ["PROTOCOLS", "AnyProtocol", "BenchmarkProtocol", "build_protocol"]


def build_protocol(name: str, options: Mapping[str, object]) -> AnyProtocol:
    """Build a protocol with its options; unknown ones are errors."""
    if name not in PROTOCOLS:
        near = suggest_names(name, PROTOCOLS)
        raise WhenceError(
            f"There is no benchmark '{name}'.{near} There are {', '.join(PROTOCOLS)}."
        )
    kind = PROTOCOLS[name]
    given = {key: value for key, value in options.items() if value is not None}
    labels = LabelMapping(parse_classes(given.pop("classes", None)))
    hints = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind) if f.init and f.name != "labels"]
    for option, value in given.items():
        if option not in known:
            listed = ", ".join(known) or "none"
            raise WhenceError(f"The {name} benchmark has no option '{option}'. It has: {listed}.")
        allowed = get_args(hints[option])
        if allowed and value not in allowed:
            listed = " or ".join(f"'{one}'" for one in allowed)
            raise WhenceError(f"'{option}' is {listed}, not {value!r}.")
    return kind(labels=labels, **given)
