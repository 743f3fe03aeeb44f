"""Protocols and their options from texts."""

import pytest

from whence import WhenceError
from whence.benchmark import parse_protocols
from whence.benchmark.protocols.parsing import parse_protocol


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("trust", [("trust", {})]),
        ("trust,segmentation", [("trust", {}), ("segmentation", {})]),
        (" trust , segmentation ,", [("trust", {}), ("segmentation", {})]),
        (["trust", "segmentation"], [("trust", {}), ("segmentation", {})]),
        (
            "trust:draws=3,radius=0.5,segmentation:view=whole,rationale",
            [
                ("trust", {"draws": 3, "radius": 0.5}),
                ("segmentation", {"view": "whole"}),
                ("rationale", {}),
            ],
        ),
        (
            ["trust:draws=3", "trust: draws = 4"],
            [("trust", {"draws": 3}), ("trust", {"draws": 4})],
        ),
    ],
)
def test_several_protocols_with_options(given, expected):
    assert parse_protocols(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "Name at least one benchmark: perturbation"),
        (",", "Name at least one"),
        ([], "Name at least one"),
        ("trusts", "no benchmark 'trusts'. Did you mean 'trust'"),
        ("trust,segmentatio", "Did you mean 'segmentation'"),
        ("trust:draws=3,segmentatio", "Did you mean 'segmentation'"),
        ("trust:draws", "given as trust:NAME=VALUE, not 'trust:draws'"),
        ("trust:", "given as trust:NAME=VALUE"),
        ("trust=3", "given as trust:NAME=VALUE"),
        ("draws=3", "no benchmark 'draws'"),
        ("trust:draw=3", "no option 'draw'. Did you mean 'draws'"),
        ("trust:draws=many", "'draws' is a whole number, not 'many'"),
        ("trust:draws=3,draws=4", "'draws' of the trust benchmark is given twice"),
    ],
)
def test_sentences(given, message):
    with pytest.raises(WhenceError, match=message):
        parse_protocols(given)


def test_a_single_one():
    assert parse_protocol("trust:draws=3").options == {"draws": 3}
    with pytest.raises(WhenceError, match="names 2 benchmarks"):
        parse_protocol("trust,rationale")
