"""Compare AttnLRP of whence with its authors' library, lxt, on models that lxt supports.

    make peers

lxt patches the classes of transformers 4, so it has an environment of its own. For each model, with
random weights in float64, the largest difference of the two explanations is printed relative to the
largest score; the exit code is 1 if one is above the tolerance.
"""

import argparse
import copy
import sys
from unittest.mock import MagicMock

import torch
import transformers
from torch import Tensor, nn
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from whence import Explainer

# lxt imports all models that it supports; those of torchvision are not needed here.
sys.modules.setdefault("torchvision.models", MagicMock())
sys.modules.setdefault("torchvision", MagicMock())
import lxt.efficient  # noqa: E402

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "num_labels": 3,
    "pad_token_id": 0,
}
MODELS = {
    "Llama": (modeling_llama, transformers.LlamaConfig),
    "Qwen2": (modeling_qwen2, transformers.Qwen2Config),
    "Qwen3": (modeling_qwen3, transformers.Qwen3Config),
}


def compute_logits(model: nn.Module, embeddings: Tensor) -> Tensor:
    """Compute the classifier's logits at the last token."""
    hidden = model.model(inputs_embeds=embeddings).last_hidden_state
    return model.score(hidden)[:, -1]


def explain_with_lxt(model: nn.Module, ids: Tensor, target: int) -> Tensor:
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    compute_logits(model, embeddings)[:, target].sum().backward()
    return (embeddings * embeddings.grad).sum(-1).detach()


def explain_with_whence(model: nn.Module, ids: Tensor, target: int) -> Tensor:
    return Explainer(model).explain({"input_ids": ids}, target=target, method="attnlrp").scores


def compare(name: str, attention: str) -> float:
    """Compute the largest difference of the two explanations, relative to the largest score."""
    module, config = MODELS[name]
    torch.manual_seed(0)
    classifier = getattr(transformers, f"{name}ForSequenceClassification")
    model = classifier._from_config(config(**SIZES), attn_implementation=attention)
    model = model.double().eval()
    ids = torch.randint(5, 90, (2, 12))
    ours = explain_with_whence(copy.deepcopy(model), ids, 1)  # before lxt patches the classes
    lxt.efficient.monkey_patch(module)
    theirs = explain_with_lxt(model, ids, 1)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
    parser.add_argument("--tolerance", type=float, default=1e-7)
    options = parser.parse_args()
    relative_error = compare(options.model, options.attention)
    print(f"{options.model}, {options.attention}: {relative_error:.1e} of the largest score")
    sys.exit(relative_error > options.tolerance)


if __name__ == "__main__":
    main()
