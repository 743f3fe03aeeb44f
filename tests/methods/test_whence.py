"""The default method, beside its formula as plain loops."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.plain_models import add_padding, to_double
from tests.targets.models import build_decoder, build_encoder, make_batch, select_text
from tests.test_golden import CLASS_TOKEN
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts, run_model
from whence import Explainer, WhenceError, methods, targets
from whence._util.defaults import METHOD
from whence.methods import whence as module
from whence.tracing.readings import MapReadings

VIT, BERT = "ViTForImageClassification", "Bert"


# The formula --------------------------------------------------------------------------------------


def sum_read(maps: list[Tensor], gradients: list[Tensor]) -> list[float]:
    """What queries read of each token, of maps (heads, queries, keys)."""
    read = [0.0] * maps[0].shape[2]
    for attention, gradient in zip(maps, gradients, strict=True):
        for of_head, at_head in zip(attention.tolist(), gradient.tolist(), strict=True):
            for row, at_row in zip(of_head, at_head, strict=True):
                seen = [key for key, weight in enumerate(row) if weight > 1e-30]
                mean = sum(at_row[key] for key in seen) / max(1, len(seen))
                for key, weight in enumerate(row):
                    read[key] += weight * (at_row[key] - mean)
    return read


def list_held(hidden: list[Tensor], gradients: list[Tensor]) -> list[list[float]]:
    """What enters the blocks, (tokens, width) each, times its gradient: by block and token."""
    pairs = zip(hidden, gradients, strict=True)
    return [[float(x[i] @ g[i]) for i in range(len(x))] for x, g in pairs]


def average(values: list[float], maps: list[Tensor], content: list[bool]) -> list[float]:
    """Values of the tokens that attention links to each one, in either direction."""
    attention, found = sum(one.sum(0) for one in maps).tolist(), []
    for i in range(len(values)):
        if not content[i]:
            found.append(0.0)
            continue
        links = [
            attention[i][j] + attention[j][i] if content[j] else 0.0 for j in range(len(values))
        ]
        found.append(sum(a * b for a, b in zip(links, values, strict=True)) / sum(links))
    return found


def score(read, held, maps, content, cut: bool, reading: str) -> list[float]:
    """The scores of one sample, token by token; those of what is no content mean nothing."""
    early = held[: max(1, len(held) // 2)]
    total = [
        sum(one[i] for one in held) + 4 * read[i]
        if cut
        else sum(one[i] for one in early) / len(early) + read[i]
        for i in range(len(read))
    ]
    if reading == "evidence" and not cut:
        return total
    near = average([math.sqrt(max(e, 0)) for e in total], maps, content)
    if reading == "evidence":
        return [math.copysign(math.sqrt(abs(e)), e) * n for e, n in zip(total, near, strict=True)]
    near = average(near, maps, content)
    mean = sum(near) / sum(content)
    return [n - mean for n in near]


def compute_by_formula(output, target, content, cut: bool, reading: str, first: int = 0) -> Tensor:
    """The scores of the one sample of an output of transformers, with plain gradients."""
    maps = output.attentions[first:]
    hidden = output.hidden_states[first : len(output.attentions)]
    found = torch.autograd.grad(target, [*maps, *hidden], retain_graph=True, materialize_grads=True)
    maps, hidden = ([one[0].detach() for one in some] for some in (maps, hidden))
    read = sum_read(maps, [one[0] for one in found[: len(maps)]])
    held = list_held(hidden, [one[0] for one in found[len(maps) :]])
    scores = score(read, held, maps, content, cut, reading)
    return torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("start_layer", [0, 1])
@pytest.mark.parametrize("reading", ["evidence", "location"])
@pytest.mark.parametrize("name", [VIT, BERT])
def test_the_formula(name, reading, start_layer):
    """With plain gradients, which transformers' own hidden states and maps have too."""
    model = build_model(CASES[f"{name}-eager"]).double()
    inputs = to_double(CASES[f"{name}-eager"].inputs())
    image = name == VIT
    result = Explainer(model, layout=None if image else CLASS_TOKEN).explain(
        inputs, classes=[0, 2], gradients="plain", reading=reading, start_layer=start_layer
    )
    for b in range(len(result.scores)):
        one = {key: value[b : b + 1] for key, value in inputs.items()}
        output = run_model(model, one, output_hidden_states=True, output_attentions=True)
        tokens = output.hidden_states[0].shape[1]
        content = one.get("attention_mask", torch.ones(1, tokens))[0].bool().tolist()
        content[0] = False  # the class token
        for n, target in enumerate((0, 2)):
            logit = output.logits[0, target] - output.logits[0].mean()
            expected = compute_by_formula(output, logit, content, image, reading, start_layer)
            found, real = result.scores[b, n], torch.tensor(content)
            if image:
                assert torch.allclose(found, expected[1:], rtol=1e-9, atol=1e-12)
            else:
                assert torch.allclose(found[real], expected[real], rtol=1e-9, atol=1e-12)
                assert found[0] == found[real].min()  # [CLS] is read, and no part of the text
                assert not found[1:][~real[1:]].any()
            assert expected[real].min() < 0 < expected[real].max()


@pytest.mark.parametrize("reading", ["evidence", "location"])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_the_formula_of_a_language_model(padding, reading):
    """Of a token's logit less the mean of the vocabulary; what stands after it counts nothing."""
    model, batch = build_decoder(), make_batch(padding)
    model.set_attn_implementation("eager")
    result = Explainer(model).explain(
        batch, targets.token(2, 7), gradients="plain", reading=reading
    )
    for sample in range(2):
        text = select_text(batch, sample)
        output = model(**text, output_hidden_states=True, output_attentions=True)
        logit = output.logits[0, 2, 7] - output.logits[0, 2].mean()
        content = [at <= 2 for at in range(text["input_ids"].shape[1])]
        expected = compute_by_formula(output, logit, content, False, reading)
        expected = expected * torch.tensor(content)
        real = batch["attention_mask"][sample].bool()
        assert torch.allclose(result.scores[sample, real], expected, rtol=1e-9, atol=1e-12)
        assert expected.abs().max() > 0
        assert not result.scores[sample, ~real].any()


@pytest.mark.parametrize("gradients", ["plain", "balanced", "residual"])
def test_the_formula_holds_where_no_maps_are_made(gradients, monkeypatch):
    """Of a text without padding, torch's own attention gives the sums over queries."""
    model, text = build_decoder(), select_text(make_batch("right"), 0)
    with torch.no_grad():  # so that attention is far from even
        for name, weight in model.named_parameters():
            weight.mul_(4 if "q_proj" in name or "c_attn" in name else 1)
    asked = {"target": targets.token(3, 7), "gradients": gradients}
    model.set_attn_implementation("eager")  # which keeps maps
    expected = Explainer(model).explain(text, **asked).scores
    if gradients == "plain":
        output = model(**text, output_hidden_states=True, output_attentions=True)
        logit = output.logits[0, 3, 7] - output.logits[0, 3].mean()
        content = [at <= 3 for at in range(text["input_ids"].shape[1])]
        formula = compute_by_formula(output, logit, content, False, "evidence")
        torch.testing.assert_close(expected[0], formula * torch.tensor(content))
    unmapped, sum_unmapped = [], module._sum_against_mean
    monkeypatch.setattr(
        module, "_sum_against_mean", lambda site: unmapped.append(site) or sum_unmapped(site)
    )
    model.set_attn_implementation("sdpa")
    found = Explainer(model).explain(text, **asked).scores
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert len(unmapped) == model.config.num_hidden_layers


class Spectrogram(nn.Module):
    """16 bins at 40 moments, cut along time alone by one convolution or another."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spelling, self.weight = spelling, nn.Parameter(0.2 * torch.randn(8, 16, 4))
        self.qkv, self.head = nn.ModuleList(nn.Linear(8, 24) for _ in range(2)), nn.Linear(8, 3)

    def forward(self, input_features: Tensor) -> Tensor:
        if self.spelling == "conv2d":
            x = F.conv2d(input_features, self.weight[:, None], stride=(16, 4)).flatten(2)
        else:
            x = F.conv1d(input_features, self.weight, stride=4)
        x = x.mT
        for qkv in self.qkv:
            q, k, v = qkv(x)[:, None].chunk(3, -1)
            x = x + ((q @ k.mT).softmax(-1) @ v)[:, 0]
        return self.head(x.mean(1))


def test_an_axis_of_one_part_does_not_make_patches():
    sound = torch.randn(2, 16, 40).double()
    one, other = (
        Explainer(Spectrogram(spelling).double().eval()).explain({"input_features": given}, 0)
        for spelling, given in (("conv1d", sound), ("conv2d", sound[:, None]))
    )
    assert (one.grid, other.grid) == ((10,), (1, 10))
    torch.testing.assert_close(one.logits, other.logits)
    torch.testing.assert_close(one.scores, other.scores)


def test_the_formula_of_a_similarity():
    """What nothing competes with is explained as it is: here the cosine, by its own gradient."""
    model, text = build_encoder("Model"), select_text(make_batch(), 0)
    model.set_attn_implementation("eager")
    vector = torch.randn(16, generator=torch.Generator().manual_seed(0)).double()
    result = Explainer(model).explain(text, targets.similarity(vector), gradients="plain")
    output = model(**text, output_hidden_states=True, output_attentions=True)
    cosine = F.cosine_similarity(output.last_hidden_state[0].mean(0), vector, dim=0)
    expected = compute_by_formula(output, cosine, [True] * 7, False, "evidence")
    assert torch.allclose(result.scores[0], expected, rtol=1e-6, atol=1e-9)
    assert expected.abs().max() > 1e-6


def test_heads_that_read_different_layers():
    """A logit less the mean of all depends on the layers of all, not of its own head alone."""

    class TwoHeads(HandWrittenViT):
        def __init__(self) -> None:
            super().__init__()
            self.early = torch.nn.Linear(32, 2)

        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            self.entering = [self.embed(x.flatten(1, 2))]
            for block in self.blocks:
                self.entering.append(block(self.entering[-1]))
            early, late = self.entering[1].mean(1), self.entering[-1].mean(1)
            return torch.cat([self.early(early), self.head(late)], 1)

    torch.manual_seed(4)
    model, inputs = TwoHeads().double(), make_images(32, 32).double()
    result = Explainer(model).explain(inputs, target=0, gradients="plain", keep_evidence=True)
    maps = result.evidence.attention
    assert len(maps) == len(model.blocks) > 1
    logits = model(inputs)
    target = (logits[:, 0] - logits.mean(1)).sum()
    at_hidden = torch.autograd.grad(target, model.entering[:-1])
    for b in range(len(inputs)):
        read = sum_read([one[b] for one in maps], [one[b] for one in result.evidence.gradient])
        held = list_held([x[b].detach() for x in model.entering[:-1]], [g[b] for g in at_hidden])
        expected = score(read, held, [one[b] for one in maps], [True] * 16, True, "evidence")
        expected = torch.tensor(expected, dtype=torch.float64)
        assert torch.allclose(result.scores[b], expected, rtol=1e-9)


def test_pooling_by_attention():
    """What a learned query reads of a token counts; its map links no two tokens."""

    class Pools(HandWrittenViT):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Parameter(torch.randn(1, 1, 32))

        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            self.entering = [self.embed(x.flatten(1, 2))]
            for block in self.blocks:
                self.entering.append(block(self.entering[-1]))
            tokens = self.entering[-1]
            self.map = (self.query @ tokens.mT / 32**0.5).softmax(-1)
            return self.head((self.map @ tokens)[:, 0])

    torch.manual_seed(4)
    model, inputs = Pools().double(), make_images(32, 32).double()
    result = Explainer(model).explain(inputs, target=1, gradients="plain", keep_evidence=True)
    for sample in range(len(inputs)):
        logits = model(inputs[sample : sample + 1])[0]
        places = [*model.entering, model.map]
        *at_hidden, at_map = torch.autograd.grad(logits[1] - logits.mean(), places)
        maps = [one[sample] for one in result.evidence.attention]
        at_maps = [one[sample] for one in result.evidence.gradient]
        assert torch.allclose(maps[-1], model.map)
        assert torch.allclose(at_maps[-1], at_map)
        read = sum_read(maps, at_maps)
        held = list_held([x[0].detach() for x in model.entering], [g[0] for g in at_hidden])
        expected = score(read, held, maps[:-1], [True] * 16, True, "evidence")
        expected = torch.tensor(expected, dtype=torch.float64)
        assert torch.allclose(result.scores[sample], expected, rtol=1e-9)


def test_maps_with_negative_values_and_with_queries_that_see_nothing():
    """As where heads are mixed after the softmax."""
    torch.manual_seed(0)
    maps, gradients = torch.randn(2, 2, 4, 3, 5, dtype=torch.float64)
    maps[maps.abs() < 0.3] = 0
    maps[0, 0, 1] = 0
    maps[1, 1, 2] = -maps[1, 1, 2].abs()
    readings = MapReadings(maps, gradients[None], torch.empty(0))
    found = module._weigh_against_mean(readings).sum((2, 3))[0]
    for sample, one in enumerate(found):
        expected = sum_read([maps[sample]], [gradients[sample]])
        assert torch.allclose(one, torch.tensor(expected, dtype=torch.float64))


def test_what_a_mask_leaves_by_rounding_is_not_seen():
    """Where a model masks by adding -100, a weight rounds to 0 or not, by type and processor."""
    torch.manual_seed(0)
    gradients = torch.randn(1, 1, 1, 3, 5, dtype=torch.float64)
    masked = torch.tensor([0.0, 0.0, -100.0, -100.0, 0.0]).expand(1, 1, 3, 5).double()
    maps = masked.softmax(-1)
    assert 0 < maps.min() < 1e-40
    rounded = maps.where(maps > 1e-40, 0)
    found, expected = (
        module._weigh_against_mean(MapReadings(one, gradients, torch.empty(0)))
        for one in (maps, rounded)
    )
    torch.testing.assert_close(found, expected)


# What a softmax cannot see ------------------------------------------------------------------------


def explain_balanced(model, inputs, **options):
    layout = CLASS_TOKEN if "input_ids" in inputs else None
    return Explainer(model, layout=layout).explain(inputs, **options).scores


@pytest.mark.parametrize("reading", ["evidence", "location"])
@pytest.mark.parametrize("name", [VIT, BERT])
def test_what_is_added_to_all_logits_changes_nothing(name, reading):
    """A further direction that all classes read alike."""
    case = CASES[f"{name}-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    before = explain_balanced(model, inputs, classes=[0, 1, 2], reading=reading)
    logits = run_model(model, inputs).logits
    with torch.no_grad():
        model.classifier.weight += torch.randn(model.classifier.weight.shape[1])
    added = run_model(model, inputs).logits - logits
    assert torch.allclose(added, added[:, :1].expand_as(added))
    assert added.abs().min() > 0
    after = explain_balanced(model, inputs, classes=[0, 1, 2], reading=reading)
    assert torch.allclose(before, after, rtol=1e-7, atol=1e-10)
    former = {"method": "shared_evidence", "target": 0}  # which does see it
    one = explain_balanced(model, inputs, **former)
    assert not torch.allclose(
        one, explain_balanced(build_model(case).double(), inputs, **former), rtol=0.01
    )


def test_what_is_added_to_all_values_is_not_read():
    """Where each query's weights sum to 1, it is added to what comes out, whatever they are.

    With a head that is linear, and nothing after the one block that bends, gradients stay the same.
    """

    class Linear(HandWrittenViT):
        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            x = self.embed(x.flatten(1, 2))
            values = x + self.constant
            maps = (x @ self.keys @ x.mT / 32**0.5).softmax(-1)
            return self.head((x + maps @ values).mean(1))

    torch.manual_seed(4)
    model = Linear().double()
    model.keys = torch.randn(32, 32, dtype=torch.float64)
    model.constant = torch.zeros(32, dtype=torch.float64)
    inputs, found = make_images(32, 32).double(), []
    for constant in (model.constant, torch.randn(32, dtype=torch.float64)):
        model.constant = constant
        result = Explainer(model).explain(inputs, target=1, keep_evidence=True)
        found.append((result.scores, result.evidence.gradient[0], model(inputs)))
    (scores, gradients, logits), (moved, at_moved, others) = found
    assert not torch.allclose(logits, others, rtol=0.01)
    assert not torch.allclose(gradients, at_moved, rtol=0.01)
    assert torch.allclose(scores, moved, rtol=1e-9)


@pytest.mark.parametrize("name", [VIT, BERT])
def test_evidence_for_one_of_two_classes_is_evidence_against_the_other(name):
    case = CASES[f"{name}-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    with torch.no_grad():
        head = torch.nn.Linear(model.classifier.in_features, 2).double()
        model.classifier, model.num_labels, model.config.num_labels = head, 2, 2
    kept = Explainer(model, layout=CLASS_TOKEN if name == BERT else None).explain(
        inputs, classes=[0, 1], keep_evidence=True
    )
    for gradient in (*kept.evidence.gradient, *kept.evidence.hidden_gradient):
        assert torch.allclose(gradient[:, 0], -gradient[:, 1])
    one, other = kept.scores.unbind(1)
    if name == BERT:
        one, other = one[:, 1:], other[:, 1:]  # [CLS] has the lowest of each
        assert torch.allclose(one, -other)
    else:  # signs are opposite, and each is seen beside the evidence of its own class
        assert torch.equal(one.sign(), -other.sign())
    assert one.min() < 0 < one.max()


@pytest.mark.parametrize("name", [VIT, BERT])
def test_against_another_class_is_half_of_two_classes(name):
    """A contrast is explained as it is: no mean is taken off twice."""
    case = CASES[f"{name}-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    contrast = explain_balanced(model, inputs, target=0, against=2)
    with torch.no_grad():
        head = torch.nn.Linear(model.classifier.in_features, 2).double()
        head.weight.copy_(model.classifier.weight[[0, 2]])
        model.classifier, model.num_labels, model.config.num_labels = head, 2, 2
    assert torch.allclose(contrast, 2 * explain_balanced(model, inputs, target=0), rtol=1e-7)


@pytest.mark.parametrize("name", [VIT, BERT])
def test_classes_that_do_not_compete(name):
    """Several labels may hold at once: the logit itself is explained."""
    case = CASES[f"{name}-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    with torch.no_grad():
        alone = torch.nn.Linear(model.classifier.in_features, 1).double()
        alone.weight.copy_(model.classifier.weight[1:2])
    usual = explain_balanced(model, inputs, target=1)
    model.config.problem_type = "multi_label_classification"
    found = explain_balanced(model, inputs, target=1)
    model.classifier, model.config.problem_type = alone, None
    model.num_labels = model.config.num_labels = 1
    assert torch.allclose(found, explain_balanced(model, inputs, target=0), rtol=1e-7)
    assert not torch.allclose(found, usual, rtol=0.01)


# Padding, layers, options -------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["evidence", "location"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_changes_nothing(attention, reading):
    model, inputs = build_model(CASES[f"Bert-{attention}"]).double(), make_texts()
    explainer = Explainer(model, layout=CLASS_TOKEN)
    short = explainer.explain(inputs, target=0, reading=reading).scores
    long = explainer.explain(add_padding(inputs), target=0, reading=reading).scores
    assert torch.allclose(long[:, : short.shape[1]], short, rtol=1e-7, atol=1e-12)
    assert not long[:, short.shape[1] :].any()
    for sample, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = {name: value[sample : sample + 1, :length] for name, value in inputs.items()}
        scores = explainer.explain(alone, target=0, reading=reading).scores[0]
        assert torch.allclose(scores, short[sample, :length], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", [VIT, BERT])
def test_a_location_is_above_and_below_its_mean(name):
    case = CASES[f"{name}-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    scores = explain_balanced(model, inputs, target=0, reading="location")
    if name == BERT:
        scores = scores[:, 1:]  # [CLS] is no part of the text
    assert torch.allclose(scores.sum(1), torch.zeros(len(scores)).double(), atol=1e-12)
    assert scores.abs().amax(1).min() > 0


def test_a_layer_that_does_not_exist():
    case = CASES[f"{VIT}-sdpa"]
    with pytest.raises(WhenceError, match="start_layer=9 does not exist"):
        Explainer(build_model(case)).explain(case.inputs(), method="whence", start_layer=9)


@pytest.mark.parametrize("name", [VIT, BERT])
def test_gradients_are_balanced_for_evidence_and_residual_for_its_location(name):
    case = CASES[f"{name}-sdpa"]
    model, inputs = build_model(case).double(), to_double(case.inputs())
    for reading, usual in (("evidence", "balanced"), ("location", "residual")):
        found = explain_balanced(model, inputs, target=0, reading=reading)
        each = {
            gradients: explain_balanced(
                model, inputs, target=0, reading=reading, gradients=gradients
            )
            for gradients in ("balanced", "residual", "plain")
        }
        same = [gradients for gradients, one in each.items() if torch.equal(found, one)]
        assert same == [usual]


@pytest.mark.parametrize("more", [{}, {"gradients": "plain"}, {"reading": "location"}])
@pytest.mark.parametrize("name", [VIT, BERT])
def test_sharing_is_deprecated(name, more):
    case = CASES[f"{name}-sdpa"]
    explainer, options = Explainer(build_model(case)), {"sharing": 0.5, "start_layer": 1}
    known = {key: value for key, value in more.items() if key != "reading"}
    expected = explainer.explain(
        case.inputs(), method="shared_evidence", target=1, **options, **known
    )
    with pytest.warns(DeprecationWarning, match="method 'shared_evidence' has it"):
        found = explainer.explain(case.inputs(), method="whence", target=1, **options, **more)
    assert torch.equal(found.scores, expected.scores)


@pytest.mark.parametrize("sharing", [-1.0, float("inf"), float("nan")])
def test_a_wrong_weight(sharing):
    with pytest.raises(WhenceError, match="sharing"):
        methods.build("whence", {"sharing": sharing})


def test_it_is_the_default():
    case = CASES[f"{VIT}-sdpa"]
    result = Explainer(build_model(case)).explain(case.inputs())
    assert result.method == METHOD == "whence"
    assert result.settings == {
        "reading": "evidence",
        "start_layer": 0,
        "gradients": None,
        "sharing": None,
    }
