"""GAE across sequences: encoder-decoders, and sequences that attend to each other."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.methods.gae_formula import multiply_layers, weigh_maps
from tests.zoo import with_attention
from whence import Explainer


def normalize(relevancy: Tensor) -> Tensor:
    """Equations 8 and 9."""
    identity = torch.eye(len(relevancy), dtype=torch.float64)
    rest = relevancy - identity
    sums = rest.sum(-1, keepdim=True)
    return torch.where(sums > 0, rest / sums, 0) + identity


def propagate_decoder(encoder: list[Tensor], decoder: list[Tensor], cross: list[Tensor]) -> Tensor:
    """The relevancy of the encoder's tokens for the decoder's, layer by layer as in the paper."""
    of_source = multiply_layers(encoder)
    of_target = torch.eye(len(decoder[0]), dtype=torch.float64)
    across = torch.zeros(len(of_target), len(of_source), dtype=torch.float64)
    for own, other in zip(decoder, cross, strict=True):
        of_target, across = of_target + own @ of_target, across + own @ across
        across = across + normalize(of_target).T @ other @ normalize(of_source)
    return across


def _build_bart() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BartConfig(
        vocab_size=60,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=32,
        num_labels=3,
    )
    return transformers.BartForSequenceClassification(config)


def _build_t5() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=60,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        num_labels=3,
        eos_token_id=2,
        pad_token_id=1,
        decoder_start_token_id=1,
    )
    return transformers.T5ForSequenceClassification(config)


def _perturb(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().double()


@pytest.mark.parametrize("build", [_build_bart, _build_t5])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_encoder_decoder_of_transformers(build, implementation):
    model = _perturb(build())
    eager = with_attention(model, "eager")
    if build is _build_bart and not hasattr(model, "set_attn_implementation"):
        pytest.skip("this release of transformers cannot run BART in float64")
    if implementation == "sdpa":
        model = with_attention(model, implementation)
    ids = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])
    mask = (ids != 1).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    result = Explainer(model).explain(inputs, classes=[0, 2], method="gae")
    for i, length in enumerate((6, 4)):
        output = eager(
            input_ids=ids[i : i + 1, :length],
            attention_mask=mask[i : i + 1, :length],
            output_attentions=True,
        )
        groups = output.encoder_attentions, output.decoder_attentions, output.cross_attentions
        for column, target in enumerate((0, 2)):
            maps = weigh_maps(output.logits[0, target], [a for group in groups for a in group])
            relevancy = propagate_decoder(maps[:2], maps[2:4], maps[4:])
            scores = result.scores[i, column]
            # The decoder's last token, the end of the text, is read.
            assert torch.allclose(scores[:length], relevancy[-1], rtol=1e-7)
            assert scores.any()
            assert not scores[length:].any()


class Attention(nn.MultiheadAttention):
    """torch's attention with its map written out and kept, where `maps` is a list."""

    maps: list[Tensor] | None = None

    def forward(self, query, key, value, **options):
        if self.maps is None:
            return super().forward(query, key, value, need_weights=False)
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        parts = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (
            (x @ w.T + b).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x, w, b in parts
        )
        attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        self.maps.append(attention)
        return self.out_proj((attention @ v).transpose(1, 2).flatten(2)), None


class EncoderDecoder(nn.Module):
    """torch's layers; five learned queries are decoded from features, and their mean is read."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        options = {"dropout": 0.0, "batch_first": True}
        self.queries = nn.Parameter(torch.randn(5, width))
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 24, **options) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, 2, 24, **options) for _ in range(layers)
        )
        for layer in (*self.encoder, *self.decoder):
            layer.self_attn = Attention(width, 2, batch_first=True)
        for layer in self.decoder:
            layer.multihead_attn = Attention(width, 2, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, features: Tensor) -> Tensor:
        for layer in self.encoder:
            features = layer(features)
        decoded = self.queries.expand(len(features), -1, -1)
        for layer in self.decoder:
            decoded = layer(decoded, features)
        return self.head(decoded.mean(1))

    def with_maps(self, features: Tensor) -> tuple[Tensor, list[Tensor]]:
        plain, maps = copy.deepcopy(self), []
        for module in plain.modules():
            if isinstance(module, Attention):
                module.maps = maps
        return plain(features), maps


@pytest.mark.parametrize("layers", [1, 2])
def test_learned_queries_of_another_length(layers):
    model = _perturb(EncoderDecoder(layers=layers))
    features = torch.randn(2, 9, 16, dtype=torch.float64)
    result = Explainer(model).explain(features, classes=[0, 1], method="gae")
    assert result.scores.shape == (2, 2, 9)
    for i in range(2):
        logits, maps = model.with_maps(features[i : i + 1])
        for target in range(2):
            found = weigh_maps(logits[0, target], maps)
            own, cross = found[layers::2], found[layers + 1 :: 2]
            expected = propagate_decoder(found[:layers], own, cross).mean(0)
            assert torch.allclose(result.scores[i, target], expected, rtol=1e-7)


class TwoSequences(nn.Module):
    """Features and four learned tokens attend to themselves, then to each other, twice over."""

    def __init__(self, width: int = 16, read: str = "tokens") -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(4, width))
        self.attentions = nn.ModuleList(Attention(width, 2, batch_first=True) for _ in range(8))
        self.read = read
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens.expand(len(x), -1, -1)
        for layer in range(2):
            own_x, own_y, from_y, from_x = self.attentions[4 * layer : 4 * layer + 4]
            x = x + own_x(x, x, x)[0]
            y = y + own_y(y, y, y)[0]
            x = x + from_y(x, y, y)[0]
            y = y + from_x(y, x, x)[0]
        return self.head(y.mean(1))

    with_maps = EncoderDecoder.with_maps


def test_two_sequences_that_attend_to_each_other():
    model = _perturb(TwoSequences())
    features = torch.randn(2, 6, 16, dtype=torch.float64)
    result = Explainer(model).explain(features, target=2, method="gae")
    for i in range(2):
        logits, maps = model.with_maps(features[i : i + 1])
        found = weigh_maps(logits[0, 2], maps)
        xx, yy = torch.eye(6, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
        xy, yx = torch.zeros(6, 4, dtype=torch.float64), torch.zeros(4, 6, dtype=torch.float64)
        for own_x, own_y, from_y, from_x in (found[:4], found[4:]):
            xx, xy = xx + own_x @ xx, xy + own_x @ xy  # equations 6 and 7
            yy, yx = yy + own_y @ yy, yx + own_y @ yx
            # equations 10 and 11
            xy, xx = xy + normalize(xx).T @ from_y @ normalize(yy), xx + from_y @ yx
            yx, yy = yx + normalize(yy).T @ from_x @ normalize(xx), yy + from_x @ xy
        assert torch.allclose(result.scores[i], yx.mean(0), rtol=1e-7)


def test_a_constant_logit_of_a_decoder_gives_zeros():
    model = EncoderDecoder()
    with torch.no_grad():
        model.head.weight.zero_()
    scores = Explainer(model.eval()).explain(torch.randn(2, 9, 16), method="gae").scores
    assert torch.equal(scores, torch.zeros(2, 9))


def test_concatenated_sequences():
    """Tokens of a decoder and of its encoder, put together and attending to each other."""

    class Mixed(EncoderDecoder):
        def forward(self, features):
            features = self.encoder[0](features)
            both = torch.cat([self.decoder[0](features[:, :3], features), features], 1)
            return self.head(self.encoder[1](both)[:, 0])

    model = _perturb(Mixed())
    features = torch.randn(1, 9, 16, dtype=torch.float64)
    result = Explainer(model).explain(features, target=1, method="gae")
    logits, maps = model.with_maps(features)
    first, own, across, last = weigh_maps(logits[0, 1], maps)
    rows = torch.eye(12, dtype=torch.float64)[0]
    rows = rows + rows @ last
    of_decoder, of_encoder = rows[:3], rows[3:]
    of_encoder = of_encoder + of_decoder @ across
    of_decoder = of_decoder + of_decoder @ own
    of_encoder = of_encoder + torch.cat([of_decoder, torch.zeros(6, dtype=torch.float64)])
    expected = of_encoder + of_encoder @ first
    assert torch.allclose(result.scores[0], expected, rtol=1e-7)
