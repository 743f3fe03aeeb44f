"""Encoder-decoders against plain loops over their own attention maps."""

import copy
from functools import partial

import pytest
import torch

from tests.families.encoder_decoders import (
    DECODER,
    compute_norms,
    list_attentions,
    make_plan,
    multiply_layers,
    run_model,
    zero_values,
)
from tests.families.flow_checks import TOLERANCE, measure_error
from tests.families.flows import INPUT, compute_scores, find_evidence, weigh_hidden_states
from tests.families.models import (
    build_transformers,
    copy_eager,
    enlarge_weights,
    make_ids,
    make_pixels,
)
from tests.families.test_sequences import BART, T5
from tests.methods.test_gae_cross_attention import propagate_decoder
from whence import Explainer, WhenceError, targets

SMALL = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}
WHISPER = SMALL | {
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "max_target_positions": 16,
    "pad_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
}
FAMILIES = {
    "T5ForConditionalGeneration": ("T5Config", T5),
    "BartForConditionalGeneration": ("BartConfig", BART),
    "MarianMTModel": (
        "MarianConfig",
        SMALL | {"pad_token_id": 1, "decoder_start_token_id": 1, "max_position_embeddings": 32},
    ),
    "PegasusForConditionalGeneration": ("PegasusConfig", SMALL | {"max_position_embeddings": 32}),
    "M2M100ForConditionalGeneration": ("M2M100Config", SMALL | {"max_position_embeddings": 32}),
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER),
}
METHODS = (
    "rollout",
    "tiba",
    "gae",
    "attention_norm",
    "value_zeroing",
    "attcat",
    "whence",
    "raw_attention",
)
TOKEN, SOURCE, TARGET = 9, 6, 4
REFUSED = ("value_zeroing",)


def make_inputs(name: str) -> dict[str, torch.Tensor]:
    words = {"decoder_input_ids": make_ids(2, TARGET)}
    if name.startswith("Whisper"):
        return {"input_features": make_pixels(2, 8, 20)} | words
    return {"input_ids": make_ids(2, SOURCE) - 1} | words


class Oracle:
    """Scores of one sample of an encoder-decoder by the definitions of methods.

    Args:
        model: An encoder-decoder.
        inputs: One sample.
        target: The explained class; the logit of a token after the last one if left out.
        units: For each sequence, (tokens, units).
        listing: Lists the model's attentions.
        is_image: Whether units are patches.
    """

    def __init__(
        self, model, inputs, units, target=None, listing=list_attentions, is_image=False
    ) -> None:
        eager = model.config._attn_implementation == "eager"
        self._model, self._is_image = model if eager else copy_eager(model), is_image
        self._listing = listing
        at = (0, -1, TOKEN) if target is None else (0, target)
        self._call = lambda own: own(**inputs).logits[at]
        self._run = run_model(self._model, self._call, listing)
        ends = [(one.queries, one.keys) for one in listing(self._model)]
        sizes = zip(ends, self._run.maps, strict=True)
        lengths = {
            name: n for end, maps in sizes for name, n in zip(end, maps.shape[2:], strict=True)
        }
        self._plan = make_plan(listing(self._model), lengths.get(INPUT, 0), lengths[DECODER])
        self._plan.units = units

    def compute_scores(self, method, relevance=None, keeps_identity=False):
        plan, run = self._plan, self._run
        if method == "whence":
            return find_evidence(plan, run.run_centered(), self._is_image)
        if method == "attcat":
            return weigh_hidden_states(plan, run)
        if method == "attention_norm":
            matrices = compute_norms(self._model, self._call, run, self._listing)
            kept, moved = multiply_layers(plan, matrices, in_block=False)
            return kept + moved if keeps_identity else moved
        if method == "value_zeroing":
            matrices = zero_values(self._model, self._call, self._listing)
            return sum(multiply_layers(plan, matrices, in_block=True))
        return compute_scores(method, plan, run, relevance, keeps_identity)

    def compute_gae(self):
        """The row that is read of the encoder's relevancy for the decoder, as in the paper."""
        weighed = [
            (g * a).clamp(min=0).mean(1)[0]
            for g, a in zip(self._run.gradients, self._run.maps, strict=True)
        ]
        ends = [(one.queries, one.keys) for one in list_attentions(self._model)]
        kinds = (INPUT, INPUT), (DECODER, DECODER), (DECODER, INPUT)
        groups = [
            [m for m, end in zip(weighed, ends, strict=True) if end == kind] for kind in kinds
        ]
        return propagate_decoder(*groups)[-1] @ self._plan.units[INPUT]


def check_scores(model, inputs, target, method, make_oracle, keeps_identity=False, **options):
    """Check a batch against an oracle for each sample."""
    if method in REFUSED and not keeps_identity:
        with pytest.raises(WhenceError, match="no skip connection around it"):
            Explainer(model).explain(inputs, target, method=method, **options)
        return
    more = {"gradients": "plain"} if method == "whence" else {}
    result = Explainer(model).explain(
        inputs, target, method=method, keep_evidence=method == "tiba", **more, **options
    )
    expectations = []
    for sample in range(2):
        one = {key: value[sample : sample + 1] for key, value in inputs.items()}
        oracle, relevance = make_oracle(one), None
        if method == "tiba":
            relevance = [found[sample] for found in result.evidence.relevance]
        expected = (
            oracle.compute_gae()
            if method == "gae" and not keeps_identity
            else oracle.compute_scores(method, relevance, keeps_identity)
        )
        expectations.append(expected)
        assert measure_error(result.scores[sample], expected) < TOLERANCE
    assert torch.stack(expectations).any()


def _list_cases(*names: str) -> list:
    cases = []
    for name in names:
        for method in METHODS:
            usual = name.startswith("T5") and method in ("rollout", "tiba", "whence")
            cases.append(pytest.param(name, method, marks=() if usual else pytest.mark.slow))
    return cases


@pytest.mark.parametrize(("name", "method"), _list_cases(*FAMILIES))
def test_what_arrives_at_the_encoder(name, method):
    model = build_transformers(name, FAMILIES[name][0], **FAMILIES[name][1])
    inputs = make_inputs(name)
    units = {INPUT: torch.eye(10 if name.startswith("Whisper") else SOURCE).double()}
    # The paper of `gae` counts what the decoder's tokens gather of each other before.
    constant = None if method == "gae" else DECODER
    listing = partial(list_attentions, constant=constant)
    check_scores(
        model,
        inputs,
        targets.token(-1, token=TOKEN),
        method,
        lambda one: Oracle(model, one, units, listing=listing),
        of=next(iter(inputs)),
    )


@pytest.mark.parametrize(("name", "method"), _list_cases("T5ForConditionalGeneration"))
def test_what_arrives_at_the_decoder(name, method):
    """The token that is read is a part of the input, so that what it keeps of itself counts."""
    if method == "value_zeroing":
        pytest.xfail("a block ends before the MLP where cross-attention to a constant lies between")
    model = build_transformers(name, FAMILIES[name][0], **FAMILIES[name][1])
    units = {DECODER: torch.eye(TARGET).double()}
    listing = partial(list_attentions, constant=INPUT)
    check_scores(
        model,
        make_inputs(name),
        targets.token(-1, token=TOKEN),
        method,
        lambda one: Oracle(model, one, units, listing=listing),
        keeps_identity=True,
        of="decoder_input_ids",
    )


@pytest.mark.parametrize("method", ["rollout", "tiba", "whence", "attcat"])
@pytest.mark.parametrize("family", ["Bart", pytest.param("T5", marks=pytest.mark.slow)])
def test_both_copies_of_a_classifiers_input_count(family, method):
    """The decoder reads the same ids one place to the right, and the end of the text is read."""
    name = f"{family}ForSequenceClassification"
    model = build_transformers(name, f"{family}Config", **(T5 if family == "T5" else BART))
    ids = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 11, 13, 10, 2]])
    units = {
        INPUT: torch.eye(6).double(),
        DECODER: torch.diag(torch.ones(5), -1).double(),  # token 1 of the decoder is id 0
    }

    check_scores(
        model,
        {"input_ids": ids},
        1,
        method,
        lambda one: Oracle(model, one, units, target=1),
        keeps_identity=True,
    )


@pytest.mark.parametrize(
    "method",
    [
        "rollout",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("tiba", "gae", "whence", "attention_norm", "value_zeroing", "attcat")
        ),
    ],
)
def test_patches_that_a_decoder_reads(method):
    """A ViT and the decoder of TrOCR: a map over patches for the next token."""
    transformers = pytest.importorskip("transformers")
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"intermediate_size": 24, "image_size": 16, "patch_size": 4}
    text = {"vocab_size": 40, "d_model": 16, "decoder_layers": 2, "decoder_ffn_dim": 24}
    text |= {"decoder_attention_heads": 2, "cross_attention_hidden_size": 16}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**vision), transformers.TrOCRConfig(**text)
    )
    torch.manual_seed(5)
    model = enlarge_weights(transformers.VisionEncoderDecoderModel(config))
    eager = transformers.VisionEncoderDecoderModel._from_config(
        copy.deepcopy(config), attn_implementation="eager"
    )
    eager.load_state_dict(model.state_dict())
    inputs = {"pixel_values": make_pixels(2, 3, 16, 16), "decoder_input_ids": make_ids(2, TARGET)}
    units = {INPUT: torch.cat([torch.zeros(1, 16), torch.eye(16)]).double()}
    listing = partial(list_attentions, constant=None if method == "gae" else DECODER)
    check_scores(
        model,
        inputs,
        targets.token(-1, token=TOKEN),
        method,
        lambda one: Oracle(eager.eval().double(), one, units, listing=listing, is_image=True),
        of="pixel_values",
    )
