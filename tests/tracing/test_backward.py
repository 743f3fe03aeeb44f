"""Going down the graph gives what autograd's own engine gives, with less work and memory."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo import CASES, built
from whence import Explainer, WhenceError, rules
from whence.rules.balanced import BALANCED
from whence.tracing import Trace, record
from whence.tracing.backward import SparseRows
from whence.tracing.ops.base import Add, Operation
from whence.tracing.ops.products import Linear, MatMul

# A class token, averages, heads folded into the batch, text, attention call by call.
MODELS = [
    "timm-vit-fused",
    "timm-vit-average-fused",
    "timm-deit-distilled-unfused",
    "torchvision-vit",
    "hand-written",
    "BeitForImageClassification-sdpa",
    "Dinov2ForImageClassification-sdpa",
    "Bert-sdpa",
]


def traced(name: str) -> Trace:
    case = CASES[name]
    model, inputs = built(case).double(), case.inputs()
    if isinstance(inputs, Tensor):
        return record(model, (inputs.double(),), {}, 0)
    main = next(key for key in ("input_ids", "pixel_values") if key in inputs)
    given = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    return record(model, (), given, main)


def by_engine(of: Trace, classes: Tensor, rule_set) -> list[Tensor]:
    """The same reading by autograd's engine, which knows neither rows nor what is wanted."""
    of.tape.rules = rule_set
    seed = torch.zeros_like(of.logits).scatter_(1, classes, 1)
    try:
        found = torch.autograd.grad(
            of.logits, [site.weights for site in of.sites], seed, retain_graph=True
        )
    finally:
        of.tape.rules = None
    return [site.split_heads(one, of.batch) for site, one in zip(of.sites, found, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_readings_are_those_of_the_engine(name):
    of = traced(name)
    classes = of.logits.detach().topk(2).indices
    for rule_set in (None, BALANCED, *map(rules.get, ("stable", "reference", "paper"))):
        together = [site.weights for site in of.sites]
        together = of.read(classes, together, rule_set)
        for number in range(2):
            one = classes[:, number : number + 1]
            places = [site.weights for site in of.sites]
            alone = of.read(one, places, rule_set)
            expected = by_engine(of, one, rule_set)
            for site, a, b, c in zip(of.sites, alone, together, expected, strict=True):
                assert torch.allclose(site.split_heads(a[0], of.batch), c, rtol=1e-9, atol=1e-14)
                assert torch.allclose(
                    site.split_heads(b[number], of.batch), c, rtol=1e-9, atol=1e-14
                )


class Product(torch.autograd.Function):
    """An autograd function that a model brings along, with an argument that is no tensor."""

    @staticmethod
    def forward(ctx, a, factor, b):
        ctx.save_for_backward(a, b)
        ctx.factor = factor
        return a * b * factor

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b * ctx.factor, None, grad * a * ctx.factor


@torch.jit.script
def hidden_sum(a: Tensor, b: Tensor) -> Tensor:
    return a + b


READ = {
    "from far before the first": lambda x: x[:, -100:2].mean(1),
    "from the end": lambda x: x[:, -3:-1].mean(1),
    "with a step": lambda x: x[:, ::2].mean(1),
    "a constant added in front": lambda x: (torch.ones(8).double() + x)[:, 1],
    "a function of one tensor twice": lambda x: Product.apply(x, 2.0, x)[:, 0],
    "a function of a tensor and of one made of it": lambda x: Product.apply(x, 2.0, x.tanh())[:, 0],
    "a sum that hides its calls": lambda x: hidden_sum(x[:, :2], x[:, 1:3])[:, 0],
}


class Reads(nn.Module):
    """Two layers of attention, and a readout."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.values = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for value in self.values:
            x = x + (x @ x.mT).softmax(-1) @ value(x)
        return self.head(self.read(x))


@pytest.mark.parametrize("read", READ)
def test_gradients_are_those_of_the_engine_however_tokens_are_read(read):
    torch.manual_seed(0)
    of = record(Reads(READ[read]).double(), (torch.randn(3, 7, 8).double() / 4,), {}, 0)
    classes = of.logits.detach().topk(2).indices
    together = of.read(classes, [site.weights for site in of.sites])
    for number in range(2):
        one = classes[:, number : number + 1]
        alone = of.read(one, [site.weights for site in of.sites])
        for site, a, b, c in zip(of.sites, alone, together, by_engine(of, one, None), strict=True):
            assert torch.allclose(site.split_heads(a[0], 3), c, rtol=1e-9, atol=1e-14)
            assert torch.allclose(site.split_heads(b[number], 3), c, rtol=1e-9, atol=1e-14)


class OfMixedTypes(nn.Module):
    """Scores and a part of the residual stream in bfloat16, the softmax and the rest not."""

    def __init__(self):
        super().__init__()
        self.value = nn.Linear(8, 8)
        self.coarse = nn.Linear(8, 8).bfloat16()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        low = (x * 1).bfloat16()
        maps = (low @ low.mT).softmax(-1, dtype=torch.float32)
        x = x + maps @ self.value(x)
        x = x + self.coarse(x.bfloat16())
        x = (self.coarse(x.bfloat16()) + torch.ones(8)) + x
        return self.head(x[:, 0])


@pytest.mark.parametrize("rule_set", [None, "stable", "reference", "paper"])
def test_readings_have_the_types_of_what_they_belong_to(rule_set):
    torch.manual_seed(0)
    of = record(OfMixedTypes(), (torch.randn(2, 5, 8) / 2,), {}, 0)
    classes = of.logits.detach().argmax(1, keepdim=True)
    how = None if rule_set is None else rules.get(rule_set)
    places = [of.sites[0].weights, of.inputs[0]]
    of.tape.rules = how
    seed = torch.zeros_like(of.logits).scatter_(1, classes, 1)
    expected = torch.autograd.grad(of.logits, places, seed, retain_graph=True)
    of.tape.rules = None
    for found, like in zip(of.read(classes, places, how), expected, strict=True):
        assert found.dtype == like.dtype
        assert torch.allclose(found[0], like, rtol=1e-3, atol=1e-3 * float(like.abs().max()))


def test_several_readings_go_down_together():
    of = traced("timm-vit-fused")
    classes = of.logits.detach().argmax(1, keepdim=True)
    stable = rules.get("stable")
    places = [site.weights for site in of.sites]
    found = dict(of.descend(classes, places, [None, stable]))
    for number, (gradient, relevance) in found.items():
        assert torch.equal(gradient, of.read(classes, places, None)[number])
        assert torch.equal(relevance, of.read(classes, places, stable)[number])


def test_behind_a_class_token_only_its_row_is_worked_on(monkeypatch):
    of = traced("timm-vit-fused")
    tokens, seen = of.sites[0].key_count, []
    plain = Linear.gradient

    def watched(self, output):
        seen.append(output.shape[1] if output.dim() == 3 else 1)
        return plain(self, output)

    monkeypatch.setattr(Linear, "gradient", watched)
    classes = of.logits.detach().argmax(1, keepdim=True)
    of.gradient(classes, of.sites[-1:])
    assert seen
    assert set(seen) == {1}
    seen.clear()
    of.gradient(classes)
    assert tokens in seen


def test_what_has_been_passed_is_let_go():
    of = traced("timm-vit-fused")
    classes = of.logits.detach().argmax(1, keepdim=True)
    going = of.descend(classes, [s.weights for s in of.sites[::-1]], [None], release=True)
    next(going)
    next(going)
    upper = [s.operation for s in of.steps if s.operation.index > of.sites[-1].product.index]
    lower = [s.operation for s in of.steps if s.operation.index < of.sites[0].product.index]
    assert not any(hasattr(operation, "output") for operation in upper)
    assert all(hasattr(operation, "output") for operation in lower)


def recorded(operation: Operation, *inputs: Tensor) -> Operation:
    operation.tape = Tape()
    operation.tape.batch = 2
    operation.forward(*inputs)
    return operation


@pytest.mark.parametrize("rule_set", ["stable", "reference", "paper"])
@pytest.mark.parametrize(
    "operation",
    [
        recorded(Linear(torch.randn(5, 4).double()), torch.randn(2, 6, 4).double()),
        recorded(MatMul(), torch.randn(2, 6, 4).double(), torch.randn(2, 4, 5).double()),
        recorded(Add(), torch.randn(2, 6, 5).double(), torch.randn(2, 6, 5).double()),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_rows_get_what_the_whole_would_give_them(operation, rule_set):
    rows = SparseRows(torch.rand(2, 2, 5).double(), -2, 3, operation.output.shape)
    small, shapes = operation.narrow_rows(*rows.place)
    some = rules.get(rule_set).propagate(small, rows.value)
    whole = rules.get(rule_set).propagate(operation, rows.to_dense())
    for part, shape, expected in zip(some, shapes, whole, strict=True):
        got = part if shape is None else SparseRows(part, -2, 3, shape).to_dense()
        assert torch.allclose(got, expected)


def test_a_reading_without_shortcuts_is_the_same():
    of = traced("timm-vit-fused")
    classes = of.logits.detach().argmax(1, keepdim=True)
    quick = of.relevance(classes, rules.get("stable"))
    of.tape.exact = True
    for a, b in zip(quick, of.relevance(classes, rules.get("stable")), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-15)


def test_shortcuts_in_doubt_are_not_taken_in_the_end(monkeypatch):
    case = CASES["timm-vit-fused"]
    expected = Explainer(built(case)).explain(case.inputs(), method="tiba").scores
    exact = []

    def postponed(self, doubt):
        exact.append(self.exact)
        self._doubts.append(torch.ones_like(doubt))  # as on a GPU, where nobody looks in between
        return False

    monkeypatch.setattr(Tape, "doubts", postponed)
    monkeypatch.setattr("whence.rules._CANCELLED", 1e9)
    model, passes = built(case), []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    scores = Explainer(model).explain(case.inputs(), method="tiba").scores
    assert len(passes) == 2
    assert exact
    assert not any(exact)
    assert torch.allclose(scores, expected, rtol=1e-4)


def test_shortcuts_that_end_in_nan_are_not_taken_in_the_end(monkeypatch):
    def coarse(op, relevance):
        broken = torch.full_like(op.x, torch.nan)
        op.tape._doubts.append(torch.tensor(True))
        return exact(op, relevance) if op.tape.exact else broken

    exact = rules.get("stable").rules["linear"]
    case = CASES["timm-vit-fused"]
    asked = {"method": "tiba", "rules": rules.get("stable").extend("coarse", linear=coarse)}
    found = Explainer(built(case)).explain(case.inputs(), **asked)
    plain = Explainer(built(case)).explain(case.inputs(), method="tiba")
    assert torch.allclose(found.scores, plain.scores, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("request_", [{"target": [0, 1]}, {"classes": [[0, 1], [1, 0]]}])
def test_classes_for_each_sample_are_as_many_in_parts(request_):
    case = CASES["Bert-sdpa"]
    inputs = {name: value[:1].repeat(4, 1) for name, value in case.inputs().items()}
    explainer = Explainer(built(case))
    for memory in (1, 4e-4, 2e-4, 1e-4, 1e-7):  # in parts of 4 samples, of 2 and of 1
        with pytest.raises(WhenceError, match="2 targets were given for 4"):
            explainer.explain(inputs, memory=memory, method="tiba", **request_)


def test_what_fits_is_remembered_while_free_memory_varies(monkeypatch):
    free = iter(range(100_000, 0, -1))
    monkeypatch.setattr("whence.explainer.most_bytes", lambda *_: float(next(free)))
    case = CASES["timm-vit-fused"]
    explainer = Explainer(built(case))
    for _ in range(4):
        explainer.explain(case.inputs(), method="tiba")
    assert len(explainer._bytes_of_sample) == 1


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout"])
@pytest.mark.parametrize("name", ["timm-vit-fused", "Bert-sdpa"])
def test_a_batch_in_parts_is_explained_alike(name, method):
    case = CASES[name]
    explainer, inputs = Explainer(built(case).double()), case.inputs()
    if isinstance(inputs, Tensor):
        inputs = inputs.double()
    whole = explainer.explain(inputs, method=method, classes=2)
    [(shapes, sample)] = explainer._bytes_of_sample.items()
    assert sample > 1e-6 * 2**30  # so that one goes after the other
    parts = explainer.explain(inputs, method=method, classes=2, memory=1e-6)
    assert explainer._bytes_of_sample[shapes] == sample
    assert torch.allclose(parts.scores, whole.scores)
    assert torch.equal(parts.target, whole.target)
    assert parts.target_names == whole.target_names
    alone = explainer.explain(inputs, method=method, target=[0, 1, 2], memory=1e-6)
    assert alone.target.tolist() == [0, 1, 2]


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout"])
@pytest.mark.parametrize(
    "name",
    ["timm-vit-fused", "timm-vit-average-fused", "Bert-sdpa", "Dinov2ForImageClassification-sdpa"],
)
def test_attention_without_kept_maps_is_explained_alike(name, method, monkeypatch):
    case = CASES[name]
    explainer, inputs = Explainer(built(case).double()), case.inputs()
    if isinstance(inputs, Tensor):
        inputs = inputs.double()
    whole = explainer.explain(inputs, method=method, classes=2)
    rule_sets = ("stable", "reference") if method == "tiba" else ("stable",)
    made = []
    forward = Attention.forward
    monkeypatch.setattr(Attention, "forward", lambda *a: made.append(a[0]) or forward(*a))
    monkeypatch.setattr("whence.explainer._OF_A_MAP", 1e-9)
    for rule_set in rule_sets:
        made.clear()
        parts = explainer.explain(inputs, method=method, classes=2, rules=rule_set)
        assert len(made) == 3
        assert all(operation.heads_at_once == 1 for operation in made)
        with monkeypatch.context() as usual:
            usual.setattr("whence.explainer._OF_A_MAP", 1)
            whole = explainer.explain(inputs, method=method, classes=2, rules=rule_set)
        assert len(made) == 3
        assert torch.allclose(parts.scores, whole.scores, rtol=1e-9, atol=1e-15)


def test_rules_that_look_at_all_heads_get_their_maps(monkeypatch):
    case = CASES["timm-vit-fused"]
    explainer = Explainer(built(case))
    asked = {"method": "tiba", "rules": "paper"}
    expected = explainer.explain(case.inputs(), **asked).scores
    monkeypatch.setattr("whence.explainer._OF_A_MAP", 1e-9)
    assert torch.equal(explainer.explain(case.inputs(), **asked).scores, expected)


class Long(nn.Module):
    """Attention of 4 heads in ways that models have, beside the usual one."""

    def __init__(self, way, heads=4):
        super().__init__()
        self.way, self.heads = way, heads
        self.into = nn.ModuleList(nn.Linear(8, 3 * 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def attend(self, into, x):
        batch, tokens, _ = x.shape
        parts = into(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mask = None
        if self.way == "a mask for each head":
            mask = torch.linspace(-2, 2, self.heads * tokens**2, dtype=x.dtype)
            mask = mask.sin().reshape(self.heads, tokens, tokens)
        if self.way == "one key for all heads":
            k, v = k[:, :1], v[:, :1]
        if self.way == "heads before samples":
            q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.way == "heads before samples":
            y = y.transpose(0, 1)
        if self.way == "an output read twice":
            y = y + y.tanh()
        return y.transpose(1, 2).reshape(batch, tokens, -1)

    def forward(self, x):
        x = x * 1
        if self.way == "side by side":
            a, b = self.attend(self.into[0], x), self.attend(self.into[1], x)
            x = x + (b + a)
        else:
            x = x + self.attend(self.into[0], x)
        return self.head((x + self.attend(self.into[2], x))[:, 0])


@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize(
    "way",
    [
        "a mask for each head",
        "one key for all heads",
        "heads before samples",
        "an output read twice",
        "side by side",
        "one head",
    ],
)
def test_long_attention_of_any_form_is_explained_alike(way, batch, monkeypatch):
    torch.manual_seed(0)
    model = Long(way, heads=1 if way == "one head" else 4).double()
    x = torch.randn(batch, 5, 8).double()
    asked = [("tiba", "stable"), ("tiba", "reference"), ("gae", "stable"), ("rollout", "stable")]
    for method, by in asked:
        request = {"classes": [0, 2], "method": method, "rules": by}
        with monkeypatch.context() as usual:
            usual.setattr("whence.explainer._OF_A_MAP", 1.0)
            expected = Explainer(model).explain(x, **request).scores
        monkeypatch.setattr("whence.explainer._OF_A_MAP", 1e-12)
        found = Explainer(model).explain(x, **request).scores
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
