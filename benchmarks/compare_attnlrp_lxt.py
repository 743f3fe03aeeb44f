"""Compare AttnLRP of whence with its authors' library, lxt, on all language models that lxt supports.

    make peers

lxt patches the classes of transformers 4, so it has an environment of its own. Each model has random
weights in float64. One logit is explained (the next token's, or a class's), and the difference of
two. Printed is the largest difference of the two explanations relative to the largest score; the
exit code is 1 if one is above the tolerance.
"""

import argparse
import itertools
import sys
import types
from unittest.mock import MagicMock

import torch
import transformers
from torch import Tensor, nn
from transformers.models.bert import modeling_bert
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from whence import Explainer

# lxt imports all models that it supports; those of torchvision are not needed here.
sys.modules.setdefault("torchvision.models", MagicMock())
sys.modules.setdefault("torchvision", MagicMock())
import lxt.efficient  # noqa: E402

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
GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 100, "pad_token_id": 0}
MODELS = {
    "Llama": (modeling_llama, "LlamaForCausalLM", transformers.LlamaConfig(**GQA)),
    "Qwen2": (modeling_qwen2, "Qwen2ForCausalLM", transformers.Qwen2Config(**GQA)),
    "Qwen3": (modeling_qwen3, "Qwen3ForCausalLM", transformers.Qwen3Config(**GQA)),
    "Gemma3": (
        modeling_gemma3,
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(**GQA, **WINDOW),
    ),
    "GPT2": (modeling_gpt2, "GPT2LMHeadModel", transformers.GPT2Config(**GPT)),
    "Llama, classes": (
        modeling_llama,
        "LlamaForSequenceClassification",
        transformers.LlamaConfig(**GQA),
    ),
    "BERT, classes": (
        modeling_bert,
        "BertForSequenceClassification",
        transformers.BertConfig(**TEXT),
    ),
    "BERT, words": (modeling_bert, "BertForMaskedLM", transformers.BertConfig(**TEXT)),
}
TARGET, AGAINST = 1, 2
TOKENS = 12


def read_logits(returned: transformers.utils.ModelOutput) -> Tensor:
    """Read the logits of classes, or of words at the last token."""
    return returned.logits if returned.logits.dim() == 2 else returned.logits[:, -1]


def build(
    name: str, attention: str, weights: dict[str, Tensor] | None = None
) -> transformers.PreTrainedModel:
    """Build a model by the class that transformers has now, which lxt may have patched."""
    module, class_name, config = MODELS[name]
    torch.manual_seed(0)
    make = getattr(module, class_name)._from_config
    model = make(config, attn_implementation=attention).double().eval()
    if weights is None:
        enlarge_weights(model)
    else:
        model.load_state_dict(weights)
    return model


def enlarge_weights(model: nn.Module) -> None:
    """Add noise to all weights, so that biases and norms differ from their initial values."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


def explain_with_lxt(model: transformers.PreTrainedModel, ids: Tensor) -> list[Tensor]:
    explanations = []
    for contrast in (False, True):
        embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
        # Without ids, classifiers of Llama read the last token, as they do here.
        logits = read_logits(model(inputs_embeds=embeddings))
        explained = logits[:, TARGET] - logits[:, AGAINST] if contrast else logits[:, TARGET]
        (gradient,) = torch.autograd.grad(explained.sum(), embeddings)
        explanations.append((embeddings * gradient).sum(-1).detach())
    return explanations


def explain_with_whence(model: transformers.PreTrainedModel, ids: Tensor) -> list[Tensor]:
    explainer = Explainer(model, output=read_logits)
    both = explainer.explain({"input_ids": ids}, classes=[TARGET, AGAINST], method="attnlrp").scores
    return [both[:, 0], both[:, 0] - both[:, 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tolerance", type=float, default=1e-6)
    options = parser.parse_args()
    ids = torch.randint(5, 90, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    ours, weights = {}, {}
    cases = list(itertools.product(MODELS, ("eager", "sdpa")))
    for case in cases:  # before lxt patches the classes
        model = build(*case)
        ours[case], weights[case] = explain_with_whence(model, ids), model.state_dict()
    modules: set[types.ModuleType] = {module for module, _, _ in MODELS.values()}
    for module in modules:
        lxt.efficient.monkey_patch(module)
    worst = 0.0
    for case in cases:
        theirs = explain_with_lxt(build(*case, weights[case]), ids)
        errors = [
            float((a - b).abs().max() / b.abs().max())
            for a, b in zip(ours[case], theirs, strict=True)
        ]
        worst = max(worst, *errors)
        print(f"{case[0]:16s} {case[1]:6s} one logit {errors[0]:.1e}, contrast {errors[1]:.1e}")
    sys.exit(worst > options.tolerance)


if __name__ == "__main__":
    main()
