"""Compare AttnLRP of whence with its authors' library, lxt, on the language models of lxt.

    make peers

lxt patches classes of transformers: the published release needs transformers 4, and the newest
source, which knows Qwen3-MoE too, transformers 5 (where BERT fails). What cannot be run is left
out, with a line that says so.

Each model has random weights in float64. One logit is explained (the next token's, or a class's),
and the difference of two. Printed is the largest difference of the two explanations relative to the
largest score: with lxt as it is, and without the 1e-10 that it adds to the input of activations
before it divides by it. The exit code is 1 if one without is above the tolerance.
"""

import argparse
import importlib
import itertools
import sys
from functools import partial
from types import ModuleType
from typing import NamedTuple
from unittest.mock import MagicMock

import torch
import transformers
from torch import Tensor, nn

from whence import Explainer, targets

# lxt imports all models that it supports; those of torchvision are not needed here.
sys.modules.setdefault("torchvision.models", MagicMock())
sys.modules.setdefault("torchvision", MagicMock())
import lxt.efficient  # noqa: E402
from lxt.efficient.models import DEFAULT_MAP  # noqa: E402
from lxt.efficient.rules import identity_rule_implicit_fn  # noqa: E402

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "num_labels": 3,
    "pad_token_id": 0,
}
GQA = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}
WINDOW = {"sliding_window": 6, "query_pre_attn_scalar": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 100, "pad_token_id": 0}


class Case(NamedTuple):
    """A model by its module and class, the class of its configuration, and its sizes."""

    module: str
    model: str
    config: str
    sizes: dict[str, object]

    def load(self) -> ModuleType:
        """Import the module that has the model's classes."""
        return importlib.import_module(f"transformers.models.{self.module}.modeling_{self.module}")

    def build(self, attention: str, weights: dict[str, Tensor] | None = None) -> nn.Module:
        """Build a model by the class that transformers has now, which lxt may have patched."""
        options = {"experts_implementation": "eager"} if "num_experts" in self.sizes else {}
        torch.manual_seed(0)
        model = getattr(self.load(), self.model)._from_config(
            getattr(transformers, self.config)(**self.sizes),
            attn_implementation=attention,
            **options,
        )
        model = model.double().eval()
        if weights is None:
            enlarge_weights(model)
        else:
            model.load_state_dict(weights)
        return model


CASES = {
    "Llama": Case("llama", "LlamaForCausalLM", "LlamaConfig", GQA),
    "Llama, classes": Case("llama", "LlamaForSequenceClassification", "LlamaConfig", GQA),
    "Qwen2": Case("qwen2", "Qwen2ForCausalLM", "Qwen2Config", GQA),
    "Qwen3": Case("qwen3", "Qwen3ForCausalLM", "Qwen3Config", GQA),
    "Qwen3-MoE": Case("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**GQA, **EXPERTS}),
    "Qwen3-MoE, weights that sum to 1": Case(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**GQA, **EXPERTS, "norm_topk_prob": True},
    ),
    "Gemma3": Case("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", {**GQA, **WINDOW}),
    "GPT-2": Case("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT),
    "BERT, classes": Case("bert", "BertForSequenceClassification", "BertConfig", TEXT),
    "BERT, words": Case("bert", "BertForMaskedLM", "BertConfig", TEXT),
}
TARGET, AGAINST = 1, 2
TOKENS = 12


def list_cases() -> list[str]:
    """List the models that lxt can patch here; say which it cannot."""
    fails = {"bert"} if int(transformers.__version__.split(".")[0]) > 4 else set()
    names = []
    for name, case in CASES.items():
        if case.module in fails or case.load() not in DEFAULT_MAP:
            print(f"{name}: lxt does not run with transformers {transformers.__version__}")
        else:
            names.append(name)
    return names


def read_logits(returned: transformers.utils.ModelOutput) -> Tensor:
    """Read the logits of classes, or of words at the last token."""
    return returned.logits if returned.logits.dim() == 2 else returned.logits[:, -1]


def enlarge_weights(model: nn.Module) -> None:
    """Add noise to all weights, so that biases and norms differ from their initial values."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


def explain_with_lxt(model: nn.Module, ids: Tensor) -> list[Tensor]:
    explanations = []
    for contrast in (False, True):
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        # Without ids, classifiers of Llama read the last token, as they do here.
        logits = read_logits(model(inputs_embeds=embeddings))
        explained = logits[:, TARGET] - logits[:, AGAINST] if contrast else logits[:, TARGET]
        (gradient,) = torch.autograd.grad(explained.sum(), embeddings)
        explanations.append((embeddings * gradient).sum(-1).detach())
    return explanations


def explain_with_whence(model: nn.Module, ids: Tensor) -> list[Tensor]:
    classifies = "Classification" in type(model).__name__
    target, against = (n if classifies else targets.token(token=n) for n in (TARGET, AGAINST))
    explain = partial(Explainer(model).explain, {"input_ids": ids}, target, method="attnlrp")
    return [explain().scores, explain(against=against).scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tolerance", type=float, default=1e-6)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    ids = torch.randint(5, 90, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    runs = list(itertools.product(list_cases(), ("eager", "sdpa")))
    ours, weights = {}, {}
    for name, attention in runs:  # before lxt patches the classes
        model = CASES[name].build(attention)
        ours[name, attention] = explain_with_whence(model, ids)
        weights[name, attention] = model.state_dict()
    for module in {CASES[name].load() for name, _ in runs}:
        lxt.efficient.monkey_patch(module)
    worst = 0.0
    for name, attention in runs:
        model = CASES[name].build(attention, weights[name, attention])
        errors = []
        for epsilon in (1e-10, 0.0):
            identity_rule_implicit_fn.forward.__defaults__ = (epsilon,)
            pairs = zip(ours[name, attention], explain_with_lxt(model, ids), strict=True)
            errors.append([float((a - b).abs().max() / b.abs().max()) for a, b in pairs])
        worst = max(worst, *errors[1])
        (one, contrast), (exact, exact_contrast) = errors
        print(
            f"{name}, {attention}: one logit {one:.0e}, contrast {contrast:.0e}; "
            f"without epsilon {exact:.0e}, {exact_contrast:.0e}"
        )
    sys.exit(worst > options.tolerance)


if __name__ == "__main__":
    main()
