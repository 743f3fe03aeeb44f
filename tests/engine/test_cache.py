"""A language model keeps no cache of keys and values where nobody reads it."""

import pytest
import torch
import transformers

from whence import Explainer, targets


def make_config():
    return transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=40,
    )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(make_config()).eval()


@pytest.fixture
def caches(model):
    """What each call of the first block is given as its cache."""
    given = []
    block = model.model.layers[0]
    hook = block.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs.get("past_key_values")), with_kwargs=True
    )
    yield given
    hook.remove()


IDS = {"input_ids": torch.tensor([[3, 1, 4, 1, 5, 9]])}


@pytest.mark.parametrize("target", [targets.token(), targets.span(2, 4)])
@pytest.mark.parametrize("method", ["whence", "attnlrp", "tiba"])
def test_without_a_reader_there_is_no_cache_and_nothing_else_changes(model, caches, target, method):
    found = Explainer(model).explain(IDS, target=target, method=method)
    assert caches
    assert all(one is None for one in caches)
    kept = Explainer(model).explain({**IDS, "use_cache": True}, target=target, method=method)
    assert caches[-1] is not None
    torch.testing.assert_close(found.scores, kept.scores)
    torch.testing.assert_close(found.logits, kept.logits)


def test_a_function_sees_what_the_model_returns(model):
    seen = []

    def read_logits(outputs, inputs):
        seen.append(outputs.past_key_values)
        return outputs.logits[:, -1, 7]

    Explainer(model).explain(IDS, target=read_logits, method="input_x_gradient")
    assert seen
    assert all(one is not None for one in seen)


def test_a_cache_that_is_given_is_read(model, caches):
    with torch.no_grad():
        cache = model(IDS["input_ids"][:, :3]).past_key_values
    given = {"input_ids": IDS["input_ids"][:, 3:], "past_key_values": cache}
    whole = model(**IDS).logits[:, -1]
    found = Explainer(model).explain(given, target=targets.token(), method="attnlrp")
    torch.testing.assert_close(
        found.logits[:, 0] if found.logits.dim() > 2 else found.logits, whole
    )
    assert caches[-1] is not None


def test_classes_of_users_are_run_as_they_are():
    """Their logits may depend on what they are asked for."""

    class Doubled(transformers.LlamaForCausalLM):
        def forward(self, input_ids=None, use_cache=None, **kwargs):
            returned = super().forward(input_ids, use_cache=use_cache, **kwargs)
            if self.config.use_cache if use_cache is None else use_cache:
                returned.logits = returned.logits * 2
            return returned

    torch.manual_seed(0)
    model = Doubled(make_config()).eval()
    found = Explainer(model).explain(IDS, target=targets.token(), method="attnlrp")
    expected = model(**IDS).logits[:, -1]
    torch.testing.assert_close(found.logits.reshape(expected.shape), expected)


def test_a_forward_of_a_users_own_is_run_as_it_is():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(make_config()).eval()
    own = model.forward
    model.forward = lambda input_ids: own(input_ids, use_cache=True)
    found = Explainer(model).explain(IDS, target=targets.token(), method="attnlrp")
    expected = own(**IDS).logits[:, -1]
    torch.testing.assert_close(found.logits.reshape(expected.shape), expected)


@pytest.mark.parametrize("method", ["attnlrp", "gae"])
def test_an_encoder_decoder_keeps_its_own_logits(method):
    """FSMT masks what comes later in the decoder only where it is asked for no cache."""
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads"), 2)
    sizes |= {"decoder_attention_heads": 2, "d_model": 16, "langs": ["en", "de"]}
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32}
    sizes |= {"src_vocab_size": 40, "tgt_vocab_size": 40}
    torch.manual_seed(0)
    model = transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**sizes)).eval()
    inputs = {**IDS, "decoder_input_ids": torch.tensor([[2, 8, 6, 7]])}
    with torch.no_grad():
        plain = model(**inputs).logits
        if plain.shape[1] == 1:
            pytest.skip("This release of transformers has FSMT decode the last token alone.")
        assert not torch.allclose(plain, model(**inputs, use_cache=False).logits)
    found = Explainer(model).explain(inputs, targets.token(1, token=7), method=method)
    torch.testing.assert_close(found.logits, plain[:, 1])
