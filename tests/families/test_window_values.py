"""Values in windows: norms of what tokens add, outputs without a value, evidence at tokens."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.families.encoder_decoders import multiply_layers
from tests.families.flow_checks import TOLERANCE, measure_error
from tests.families.flows import Plan, run_plainly, weigh_hidden_states
from tests.families.models import copy_eager, make_pixels
from tests.families.test_windows import build_swin, list_blocks, plan_swin
from whence import Explainer

SIZE, GRID, WINDOW = (16, 16), (4, 4), 2


def read_blocks(model, call) -> list[tuple[Tensor, Tensor]]:
    """For each block, its values (windows, places, width), and its output (tokens, width)."""
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    hooks = []
    for block in list_blocks(model):
        hooks += [
            block.attention.v_proj.register_forward_hook(lambda _m, _a, out: values.append(out)),
            block.register_forward_hook(lambda _m, _a, out: outputs.append(out[0][0])),
        ]
    with torch.no_grad():
        call(model)
    for hook in hooks:
        hook.remove()
    return list(zip(values, outputs, strict=True))


def compute_norms(model, call, run) -> list[Tensor]:
    """For each block, norms of what each place adds to each: (windows, places, places)."""
    norms = []
    blocks = zip(list_blocks(model), read_blocks(model, call), run.maps, strict=True)
    for block, (values, _), maps in blocks:
        heads = maps.shape[1]
        by_head = values.unflatten(-1, (heads, -1))
        weight = block.attention.o_proj.weight.detach().unflatten(1, (heads, -1))
        added = torch.einsum("ghqk,gkhd,whd->gqkw", maps, by_head, weight)
        norms.append(added.norm(dim=-1))
    return norms


def zero_values(model, call, plan: Plan) -> list[Tensor]:
    """For each block, 1 - cos of outputs when one place of all windows has no value."""
    found = []
    whole = [output for _, output in read_blocks(model, call)]
    for number, (block, layer) in enumerate(zip(list_blocks(model), plan.layers, strict=True)):
        distances = torch.zeros(*layer.rows.shape, layer.rows.shape[1]).double()
        for place in range(layer.rows.shape[1]):
            hook = block.attention.v_proj.register_forward_hook(
                lambda _m, _a, out, place=place: zero_place(out, place)
            )
            output = read_blocks(model, call)[number][1]
            hook.remove()
            distance = 1 - F.cosine_similarity(output, whole[number], dim=-1)
            distances[:, :, place] = distance[layer.rows]
        found.append(distances)
    return found


def zero_place(values: Tensor, place: int) -> Tensor:
    changed = values.clone()
    changed[:, place] = 0
    return changed


def compute_expected(method: str, model, pixels: Tensor, plan: Plan) -> Tensor:
    def call(own):
        return own(pixels).logits[0, 1]

    run = run_plainly(model, call, list_blocks)
    if method == "attcat":
        return weigh_hidden_states(plan, run)
    if method == "attention_norm":
        _, moved = multiply_layers(plan, compute_norms(model, call, run), in_block=False)
        return moved  # all tokens are read alike
    return sum(multiply_layers(plan, zero_values(model, call, plan), in_block=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["attcat", "attention_norm", "value_zeroing"])
def test_values_in_windows(method):
    """Windows of 2 x 2 tokens, shifted in every second block, and merged tokens."""
    model = build_swin("Swin", SIZE, WINDOW)
    plan, eager = plan_swin(GRID, WINDOW), copy_eager(model)
    pixels = make_pixels(2, 3, *SIZE)
    result = Explainer(model).explain({"pixel_values": pixels}, 1, method=method)
    assert result.grid == GRID
    for sample in range(2):
        own = copy.deepcopy(eager)
        expected = compute_expected(method, own, pixels[sample : sample + 1], plan)
        assert measure_error(result.scores[sample], expected) < TOLERANCE
