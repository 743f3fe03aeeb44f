"""The benchmark protocols, one a file, and how they are built by name."""

from __future__ import annotations

from collections.abc import Mapping

from whence._util.near_names import suggest_names
from whence.benchmark.labels import LabelMapping, parse_classes
from whence.benchmark.protocols.base import AnyProtocol, BenchmarkProtocol
from whence.benchmark.protocols.context import ContextProtocol
from whence.benchmark.protocols.cues import CuesProtocol
from whence.benchmark.protocols.f_fidelity import FFidelityProtocol
from whence.benchmark.protocols.gridpg import GridpgProtocol
from whence.benchmark.protocols.localization import LocalizationProtocol
from whence.benchmark.protocols.options import read_option
from whence.benchmark.protocols.passages import PassagesProtocol
from whence.benchmark.protocols.perturbation import PerturbationProtocol
from whence.benchmark.protocols.randomization import RandomizationProtocol
from whence.benchmark.protocols.rationale import RationaleProtocol
from whence.benchmark.protocols.saco import SacoProtocol
from whence.benchmark.protocols.segmentation import SegmentationProtocol
from whence.benchmark.protocols.srg import SrgProtocol
from whence.benchmark.protocols.trust import TrustProtocol
from whence.benchmark.protocols.words import WordsProtocol
from whence.errors import WhenceError

PROTOCOLS: dict[str, type[AnyProtocol]] = {
    kind.name: kind
    for kind in (
        PerturbationProtocol,
        SrgProtocol,
        SacoProtocol,
        SegmentationProtocol,
        LocalizationProtocol,
        GridpgProtocol,
        FFidelityProtocol,
        RationaleProtocol,
        WordsProtocol,
        ContextProtocol,
        PassagesProtocol,
        CuesProtocol,
        RandomizationProtocol,
        TrustProtocol,
    )
}

__all__ = ["PROTOCOLS", "AnyProtocol", "BenchmarkProtocol", "build_protocol", "find_protocol"]


def find_protocol(name: str) -> type[AnyProtocol]:
    """Find a protocol by its name; an unknown one is an error that lists them."""
    if name not in PROTOCOLS:
        near = suggest_names(name, PROTOCOLS)
        raise WhenceError(
            f"There is no benchmark '{name}'.{near} There are {', '.join(PROTOCOLS)}."
        )
    return PROTOCOLS[name]


def build_protocol(name: str, options: Mapping[str, object]) -> AnyProtocol:
    """Build a protocol with its options, values or texts; unknown ones are errors."""
    kind = find_protocol(name)
    given = {key: value for key, value in options.items() if value is not None}
    labels = LabelMapping(parse_classes(given.pop("classes", None)))
    read = {option: read_option(kind, option, value) for option, value in given.items()}
    return kind(labels=labels, **read)
