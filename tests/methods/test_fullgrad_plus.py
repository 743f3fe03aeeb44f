import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.layouts import prove_layout
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, run_model
from whence import Explainer, WhenceError, rules
from whence.evidence import Evidence
from whence.inputs.arguments import ModelArguments
from whence.methods import build
from whence.targets import ClassScalars
from whence.tracing import record


def cast(inputs, dtype: torch.dtype):
    if isinstance(inputs, Tensor):
        return inputs.to(dtype)
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def explain(model: nn.Module, inputs, classes: Tensor | None = None, **options):
    """Scores of all tokens, prefix tokens included, (classes, batch, tokens), and the logits."""
    call = ModelArguments.from_inputs(inputs, model)
    recorded = record(model, call.args, dict(call.kwargs), call.main_at)
    layout = prove_layout(recorded, call.main)
    method = build("fullgrad_plus", options)
    classes = recorded.logits.topk(2).indices if classes is None else classes
    found = Evidence(
        recorded,
        ClassScalars(classes),
        layout,
        method.needs,
        rules.get("stable"),
        padding=call.padding,
        gradient_rules=method.gradient_rules,
    )
    return method(found), recorded.logits.detach().gather(1, classes).T


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("name", CASES)
def test_completeness(name, dtype, close):
    """What enters the first block and all biases sum to the logit, in every family."""
    model, inputs = build_model(CASES[name]).to(dtype), cast(CASES[name].inputs(), dtype)
    scores, logits = explain(model, inputs, layers="first", gradients="balanced")
    assert (scores.sum(-1) - logits).abs().max() < close * logits.abs().max()
    bare, _ = explain(model, inputs, layers="first", gradients="balanced", biases=False)
    assert (bare.sum(-1) - logits).abs().max() > 1e-2 * logits.abs().max()


def build_decoder(name: str, **sizes) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=100, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.double()


@pytest.mark.parametrize(
    ("name", "sizes", "close"),
    [
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, 1e-10),
        # Its RMSNorm computes in float32, whatever the model is in.
        (
            "Llama",
            {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 48,
            },
            1e-6,
        ),
    ],
)
def test_completeness_of_decoders(name, sizes, close):
    """Biases in addmm, rows of samples and tokens in one; RMSNorm, SwiGLU, rotary positions."""
    inputs = {"input_ids": torch.randint(5, 90, (3, 7)), "attention_mask": torch.ones(3, 7).long()}
    scores, logits = explain(
        build_decoder(name, **sizes), inputs, layers="first", gradients="balanced"
    )
    assert (scores.sum(-1) - logits).abs().max() < close * logits.abs().max()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Small(nn.Module):
    """Reads its first token, or the mean of all."""

    def __init__(self, average: bool) -> None:
        super().__init__()
        self.average = average
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, pixels):
        x = self.blocks(self.embed(pixels).flatten(2).mT)
        x = x.mean(1) if self.average else x[:, 0]
        return self.head(self.norm(x))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("layers", ["all", "first"])
@pytest.mark.parametrize("biases", [False, True])
def test_plain_gradients_by_hooks(average, layers, biases):
    """Gradients at what enters blocks, and behind every module that has a bias, by autograd."""
    model = Small(average).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    entering, outputs = [], []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: entering.append(args[0]))
    behind = [m for n, m in model.named_modules() if hasattr(m, "bias") and n != "embed"]
    for module in behind:
        module.register_forward_hook(lambda m, _, output: outputs.append((m.bias, output)))
    for target in (0, 2):
        entering.clear()
        outputs.clear()
        logit = model(pixels)[:, target].sum()
        gradients = torch.autograd.grad(logit, [*entering, *(o for _, o in outputs)])
        of_states, of_biases = gradients[:2], gradients[2:]
        count = 2 if layers == "all" else 1
        expected = torch.zeros(2, 16, dtype=torch.float64)
        for state, gradient in list(zip(entering, of_states, strict=True))[:count]:
            expected += (state * gradient).sum(-1)
        for (bias, _), gradient in zip(outputs, of_biases, strict=True):
            share = (bias * gradient).sum(-1)
            if not biases:
                continue
            if share.dim() == 2:
                expected += share
            elif average:
                expected += share[:, None] / 16
            else:
                expected[:, 0] += share
        result = Explainer(model).explain(
            pixels, target=target, method="fullgrad_plus", layers=layers, biases=biases
        )
        assert torch.allclose(result.scores, expected.detach(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["Bert-sdpa", "DistilBert-eager", "torchvision-vit"])
@pytest.mark.parametrize("gradients", ["plain", "balanced"])
def test_padding_and_the_batch_change_nothing(name, gradients):
    model, inputs = build_model(CASES[name]).double(), cast(CASES[name].inputs(), torch.float64)
    options = {"method": "fullgrad_plus", "gradients": gradients, "target": 1}
    whole = Explainer(model).explain(inputs, **options).scores
    text = not isinstance(inputs, Tensor)
    length = int(inputs["attention_mask"][1].sum()) if text else None
    alone = {k: v[1:2, :length] for k, v in inputs.items()} if text else inputs[1:2]
    single = Explainer(model).explain(alone, **options).scores
    assert torch.allclose(whole[1:2, :length], single, rtol=1e-8, atol=1e-12)
    assert single.min() < 0 < single.max()


def test_all_layers_are_the_sum_of_each():
    """Of BERT's own hidden states, with plain gradients and without biases."""
    case = CASES["Bert-eager"]
    model, inputs = build_model(case).double(), case.inputs()
    output = run_model(model, inputs, output_hidden_states=True)
    states = output.hidden_states[:-1]
    gradients = torch.autograd.grad(output.logits[:, 2].sum(), states)
    expected = sum((h * g).sum(-1) for h, g in zip(states, gradients, strict=True))
    ours = Explainer(model).explain(inputs, target=2, method="fullgrad_plus", biases=False)
    assert torch.allclose(ours.scores, expected, rtol=1e-8, atol=1e-14)


class Normed(HandWrittenViT):
    """Queries and keys are normalised head by head; patches alone, without the class token, too."""

    def __init__(self) -> None:
        super().__init__()
        self.of_heads, self.of_patches = nn.LayerNorm(8), nn.LayerNorm(32)
        for norm in (self.of_heads, self.of_patches):
            nn.init.normal_(norm.bias)

    def forward(self, image):
        p = self.patch
        x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.class_token.expand(len(image), 1, -1), self.embed(x)], 1)
        for block in self.blocks:
            q, k, v = (torch.einsum("bnd,hde->bhne", block.norm1(x), w) for w in block.qkv)
            mixed = F.scaled_dot_product_attention(self.of_heads(q), k, self.of_heads(v))
            x = x + torch.einsum("bhid,hdw->biw", mixed, block.out)
            x = x + block.mlp(block.norm2(x))
        return self.head(x[:, 0] + self.of_patches(x[:, 1:]).mean(1))


def test_biases_of_heads_and_of_patches_alone():
    model, pixels = Normed().double(), make_images(32, 32).double()
    scores, logits = explain(model, pixels, layers="first", gradients="balanced")
    assert (scores.sum(-1) - logits).abs().max() < 1e-10 * logits.abs().max()
    options = {"layers": "first", "gradients": "plain"}
    together, _ = explain(model, pixels, torch.zeros(3, 1).long(), **options)
    alone, _ = explain(model, pixels[2:], torch.zeros(1, 1).long(), **options)
    assert torch.allclose(together[:, 2:], alone, rtol=1e-8, atol=1e-12)


def test_a_bias_that_belongs_to_no_token():
    class Halves(HandWrittenViT):
        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            x = self.embed(x.flatten(1, 2))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x[:, ::2] + x[:, 1::2]).mean(1))

    with pytest.raises(WhenceError, match=r"shape \(3, 8, 32\).*Leave biases out: biases=False"):
        Explainer(Halves()).explain(make_images(32, 32), method="fullgrad_plus")
    result = Explainer(Halves()).explain(make_images(32, 32), method="fullgrad_plus", biases=False)
    assert result.scores.shape == (3, 16)


def test_a_logit_that_nothing_moves_has_only_its_bias():
    """It goes to the class token, which is no patch."""
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    result = Explainer(model).explain(make_images(32, 32), classes=[0, 1], method="fullgrad_plus")
    assert torch.equal(result.scores, torch.zeros(3, 2, 16))


def test_wrong_options():
    with pytest.raises(WhenceError, match="must be 'all' or 'first'"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="fullgrad_plus", layers="last"
        )
