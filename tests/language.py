"""Small language models with random weights, and tokenizers trained on a few sentences."""

import pytest
import torch

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

STORY = 'Tim had a red ball. Tim gave the ball to Sue. "Thank you!" said Sue.\nTim didn\'t mind.'
_LEARNED = [STORY, "Once upon a time, Tim and Sue had a ball, naïve as they were."] * 3


def make_llama_tokenizer():
    """Spaces are letters, nothing is split at them, and unknown characters become bytes."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
    normalizers = tokenizers.normalizers
    spaces = normalizers.Replace(" ", "▁")
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    # Split while learning only, so that no token holds several words.
    parts = tokenizers.pre_tokenizers
    spaces, signs = parts.Split("▁", "merged_with_next"), parts.Punctuation("isolated")
    inner.pre_tokenizer = parts.Sequence([spaces, signs])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=names, show_progress=False
    )
    inner.train_from_iterator([text.replace("\n", "") for text in _LEARNED], trainer)
    inner.pre_tokenizer = None
    learned = inner.to_str()
    inner = tokenizers.Tokenizer.from_str(learned)
    decoders = tokenizers.decoders
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _wrap(inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def make_gpt2_tokenizer():
    """Bytes as letters, split at spaces and punctuation."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(_LEARNED, trainer)
    return _wrap(inner, eos_token="<end>")


def _wrap(inner, **names):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def make_llama(tokenizer, seed=0):
    """A Llama of two layers."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    return transformers.LlamaForCausalLM(config).eval()


def make_gpt2(tokenizer, seed=0):
    """A GPT-2 of two layers, whose positions are learned."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    return transformers.GPT2LMHeadModel(config).eval()
