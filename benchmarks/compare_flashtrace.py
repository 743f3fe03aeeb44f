"""Compare `flashtrace` of whence with its authors' package, on small random language models.

    pip install --no-deps flashtrace tqdm
    python benchmarks/compare_flashtrace.py

Printed is the largest difference of two scores relative to the largest score, for a single
position, a span, and a span that is traced on to the prompt by one to three hops: with the package
as it is, in float32, and with its numbers in float64. Biases of values, which the package leaves
out, are zero. The exit code is 1 if a difference in float64 is above the tolerance.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import Tensor

from whence import Explainer, targets

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FAMILIES = {"Llama": {}, "Qwen3": {"head_dim": 8}, "Qwen2": {}}
TOLERANCE = 1e-6
# The answer is told at these positions; tokens from the prompt's end on were generated.
LENGTH, PROMPT, ANSWER = 30, 15, (24, 27)


def load_core(wide: bool) -> ModuleType:
    """Load the package's computation, in which numbers may be made wider than float32."""
    package = importlib.util.find_spec("flashtrace")
    if package is None or package.origin is None:
        raise SystemExit("Install the authors' package: pip install --no-deps flashtrace tqdm")
    text = Path(package.origin).with_name("core.py").read_text(encoding="utf-8")
    if wide:
        text = text.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    core = ModuleType("flashtrace_core")
    sys.modules["flashtrace_core"] = core  # which its dataclasses look up
    exec(compile(text, "core.py", "exec"), core.__dict__)  # the package's own code
    return core


def build(family: str, dtype: torch.dtype) -> Any:
    """Build a random model whose layers move much."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family])
    kind = getattr(transformers, f"{family}ForCausalLM")
    model = kind._from_config(config, attn_implementation="eager").to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("v_proj.bias"):
                parameter.zero_()
            elif parameter.dim() > 1:
                parameter.mul_(8)
    return model


class Authors:
    """The package's scores of one text."""

    def __init__(self, core: ModuleType, model: Any, ids: Tensor) -> None:
        dtype, facts = model.dtype, core.extract_model_metadata(model)
        cache, hooks = core.attach_hooks(facts.layers, dtype)
        with torch.no_grad():
            maps = model(ids, output_attentions=True).attentions
        for hook in hooks:
            hook.remove()
        names = ("n_layers", "n_heads_q", "n_kv_heads", "head_dim", "group_size", "d_model")
        sizes = {name: getattr(facts, name) for name in names}
        settings = core.IFRParameters(
            **sizes,
            sequence_length=ids.shape[1],
            model_dtype=dtype,
            chunk_tokens=16,
            sink_chunk_tokens=8,
        )
        self._core = core
        self._given = (cache, maps, core.build_weight_pack(facts, dtype), settings)

    def score_span(self, first: int, last: int) -> Tensor:
        """The scores of positions first to last together."""
        found = self._core.compute_ifr_sentence_aggregate(first, last, *self._given)
        return found.token_importance_total

    def score_hops(self, hops: int) -> Tensor:
        """The scores of the prompt after some hops."""
        spans = (*ANSWER, (PROMPT, ANSWER[1]))
        found = self._core.compute_multi_hop_ifr(*spans, hops, *self._given)
        return found.observation["sum"][:PROMPT]


def compare(family: str, dtype: torch.dtype) -> dict[str, float]:
    """Compare all kinds of targets on one model."""
    model = build(family, dtype)
    ids = torch.randint(3, 60, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    authors = Authors(load_core(dtype == torch.float64), model, ids)
    start, stop = ANSWER[0] + 1, ANSWER[1] + 2
    last = LENGTH - 1
    pairs = {
        "position": (authors.score_span(last, last), targets.token(), 0),
        "span": (authors.score_span(*ANSWER), targets.span(start, stop), 0),
    }
    for hops in (1, 2, 3):
        target = targets.span(start, stop, prompt=PROMPT)
        pairs[f"{hops} hop(s)"] = (authors.score_hops(hops), target, hops)
    found = {}
    for name, (expected, target, hops) in pairs.items():
        result = Explainer(model).explain(ids, target, method="flashtrace", hops=hops)
        scores = result.scores[0, : len(expected)]
        found[name] = float((scores - expected).abs().max() / expected.max())
    return found


def main() -> int:
    """Print a table; return 1 if numbers differ."""
    worst = 0.0
    for family in FAMILIES:
        for dtype in (torch.float32, torch.float64):
            found = compare(family, dtype)
            if dtype == torch.float64:
                worst = max(worst, *found.values())
            figures = ", ".join(f"{name} {value:.0e}" for name, value in found.items())
            print(f"{family:6} {str(dtype).removeprefix('torch.')}: {figures}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
