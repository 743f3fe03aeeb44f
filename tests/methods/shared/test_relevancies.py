"""The rules across sequences: every R of the GAE authors' own code."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.multimodal import LRP_VARIANTS, VARIANTS, compute_error, read_multimodal, read_sizes
from whence.methods.shared.relevancies import Relevancies, RelevancyRules

ALL = {**VARIANTS, **LRP_VARIANTS}


def make_rules(options: dict[str, Any], **more: Any) -> RelevancyRules:
    return RelevancyRules(
        options.get("normalize_self_attention", True),
        options.get("apply_self_in_rule_10", True),
        **more,
    )


def weigh(model: str, place: str, variant: str) -> Tensor:
    """Equation 5, from the authors' attention or relevance, and gradients: (1, 1, ...)."""
    data, kind = read_multimodal(model), "relevance" if "lrp" in variant else "attention"
    gradient, values = (torch.from_numpy(data[f"{place}/{one}"]) for one in ("gradient", kind))
    return (gradient * values).clamp(min=0).mean(0)[None, None]


def measure(relevancies: Relevancies, pair: tuple[int, int], expected: Any) -> float:
    """How far a relevancy, with the identity, is from the authors'."""
    moved = relevancies.moved.get(pair)
    moved = torch.zeros(1, 1, *expected.shape) if moved is None else moved
    own = torch.eye(len(expected)) if pair[0] == pair[1] else 0
    return compute_error(moved[0, 0] + own, expected)


@pytest.mark.parametrize("variant", ALL)
def test_every_r_of_detr(variant):
    """The image is sequence 0, the queries are sequence 1."""
    data, sizes = read_multimodal("detr_a"), read_sizes("detr_a")
    compared = 0
    for name in (f"{image}/{tag}" for image in range(2) for tag in data[f"{image}/tags"]):
        relevancies = Relevancies(make_rules(ALL[variant], zero_rows="drop"))

        def check(entry, pair, name=name, relevancies=relevancies):
            nonlocal compared
            if f"{name}/{variant}/{entry}" in data:
                assert measure(relevancies, pair, data[f"{name}/{variant}/{entry}"]) < 1e-8
                compared += 1

        for b in range(sizes["enc"]):
            relevancies.pass_concurrent([(0, 0, weigh("detr_a", f"{name}/encoder{b}", variant))])
            check(f"R_i_i_encoder{b}", (0, 0))
        for b in range(sizes["dec"]):
            own, cross = (
                weigh("detr_a", f"{name}/decoder{b}_{kind}", variant) for kind in ("self", "cross")
            )
            relevancies.pass_concurrent([(1, 1, own)])
            check(f"R_q_q_decoder{b}", (1, 1))
            check(f"R_q_i_decoder{b}_after_self", (1, 0))
            relevancies.pass_concurrent([(1, 0, cross)])
            check(f"R_q_i_decoder{b}_after_cross", (1, 0))
        query = int(data[f"{name}/query"])
        found = relevancies.moved[1, 0][0, 0, query]
        assert compute_error(found, data[f"{name}/{variant}"]) < 1e-8
    assert compared == (0 if "noself10" in variant else 64)


@pytest.mark.parametrize("variant", ALL)
def test_every_r_of_lxmert(variant):
    """The text is sequence 0, the image sequence 1."""
    data, sizes = read_multimodal("lxmert_a"), read_sizes("lxmert_a")
    pairs = {"R_t_t": (0, 0), "R_t_i": (0, 1), "R_i_i": (1, 1), "R_i_t": (1, 0)}
    compared = 0
    for name in ("0/top", "0/low", "1/top", "1/low"):
        relevancies = Relevancies(make_rules(ALL[variant]))

        def check(place, name=name, relevancies=relevancies):
            nonlocal compared
            for entry, pair in pairs.items():
                key = f"{name}/{variant}/{place}/{entry}"
                if key in data:
                    assert measure(relevancies, pair, data[key]) < 1e-8
                    compared += 1

        def read(place, name=name):
            return weigh("lxmert_a", f"{name}/{place}", variant)

        for part, s, count in (("lang", 0, sizes["l_layers"]), ("visn", 1, sizes["r_layers"])):
            for b in range(count):
                relevancies.pass_concurrent([(s, s, read(f"{part}{b}"))])
                check(f"{part}{b}")
        last = sizes["x_layers"] - 1
        for b in range(last + 1):
            cross, own = [(0, 1, read(f"cross{b}_lang"))], [(0, 0, read(f"cross{b}_lang_self"))]
            if b < last:
                cross.append((1, 0, read(f"cross{b}_visn")))
                own.append((1, 1, read(f"cross{b}_visn_self")))
            relevancies.pass_concurrent(cross)
            check(f"cross{b}_after_cross")
            relevancies.pass_concurrent(own)
            check(f"cross{b}_after_self")
        across = data[f"{name}/{variant}/R_t_i"]
        assert measure(relevancies, (0, 1), across) < 1e-8
        within = torch.from_numpy(data[f"{name}/{variant}/R_t_t"].copy())
        # The authors set what [CLS] keeps of itself to 0 in the end.
        within[0, 0] = 1 + relevancies.moved[0, 0][0, 0, 0, 0]
        assert measure(relevancies, (0, 0), within) < 1e-8
    assert compared == 4 * (3 * 2 + 2 * 2 + 4 * 4)


@pytest.mark.parametrize(
    ("model", "part"), [("clip_a", "vision"), ("clip_a", "text"), ("visualbert_a", "")]
)
def test_every_r_of_one_sequence(model, part):
    data = read_multimodal(model)
    compared = 0
    for name in ("0/0", "0/1", "1/2") if part else ("0/top", "1/low"):
        folder = f"{name}/{part}/start1" if part else f"{name}/ours"
        relevancies = Relevancies()
        for b in range(1 if part else 0, 3):
            place = f"{name}/{part}/block{b}" if part else f"{name}/block{b}"
            relevancies.pass_concurrent([(0, 0, weigh(model, place, "ours"))])
            assert measure(relevancies, (0, 0), data[f"{folder}/R_block{b}"]) < 1e-8
            compared += 1
    assert compared == 6
