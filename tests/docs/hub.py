"""A stand-in for the model hub's cache: small random models under the names that pages use."""

import json
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
import transformers
from torch import nn

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
LEARNED = """The story is thin, but the acting is superb and the ending deeply moving.
A gripping film. An unwatchable mess, not worth a minute of your time.
The capital of France is Paris. The capital of Italy is Rome.
Lily has a red ball. Tom has a blue kite. Lily plays with her red ball, and Ben has a big drum.
a photo of a cat, a photo of a dog, two remotes on a pink blanket. Once upon a time."""
CLASSES = """tench, goldfish, hammerhead, ostrich, goldfinch, junco, magpie, bald eagle, collie,
flat-coated retriever, curly-coated retriever, golden retriever, Labrador retriever,
Chesapeake Bay retriever, pug, tabby, tiger cat, Persian cat, Siamese cat, Egyptian cat, lynx, lion,
tiger, ant, bee, hare, hamster, zebra""".replace("\n", " ").split(", ")


def save_hub(cache: Path) -> Path:
    """Save every model of `MODELS` where the hub's library looks for models it has fetched."""
    for name, save in MODELS.items():
        home = cache / f"models--{name.replace('/', '--')}"
        snapshot = home / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("0" * 40)
        torch.manual_seed(0)
        save(snapshot)
    return cache


def enlarge_weights(model: nn.Module) -> nn.Module:
    """Enlarge the weights, so that scores differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model.eval()


def build_tokenizer(template: str, **names: str) -> transformers.PreTrainedTokenizerFast:
    """Build a tokenizer of bytes that knows the pages' words, with special tokens by name."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    special = list(dict.fromkeys(names.values()))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(LEARNED.splitlines() * 3, trainer)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[(name, special.index(name)) for name in special]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def save_photo_classifier(folder: Path) -> None:
    labels = dict(enumerate(CLASSES))
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, id2label=labels)
    enlarge_weights(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def save_text_classifier(folder: Path) -> None:
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = build_tokenizer("[CLS] $A [SEP]", **names)
    tokenizer.save_pretrained(folder)
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=48, id2label=labels
    )
    model = transformers.DistilBertForSequenceClassification(config)
    enlarge_weights(model).save_pretrained(folder)


def save_language_model(folder: Path) -> None:
    tokenizer = build_tokenizer("$A", eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        **SIZES, vocab_size=len(tokenizer), num_key_value_heads=2, eos_token_id=0, pad_token_id=0
    )
    enlarge_weights(transformers.LlamaForCausalLM(config)).save_pretrained(folder)


def save_encoder(folder: Path) -> None:
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = build_tokenizer("[CLS] $A [SEP]", **names)
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(**SIZES, vocab_size=len(tokenizer))
    enlarge_weights(transformers.BertModel(config)).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def save_clip(folder: Path) -> None:
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
    tokenizer = build_tokenizer(
        "<|startoftext|> $A <|endoftext|>", **names, pad_token="<|endoftext|>"
    )
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.CLIPConfig(
        text_config={**SIZES, **ends, "vocab_size": len(tokenizer)},
        vision_config={**SIZES, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    enlarge_weights(transformers.CLIPModel(config)).save_pretrained(folder)
    side = {"height": 32, "width": 32}
    pixels = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    transformers.CLIPProcessor(pixels, tokenizer).save_pretrained(folder)


def save_vision_language_model(folder: Path) -> None:
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = build_tokenizer("<s> $A", **names, unk_token="<image>")
    more = {"image_token": "<image>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, **names, extra_special_tokens=more
    )
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    text = transformers.LlamaConfig(
        **SIZES, **ends, vocab_size=len(tokenizer), num_key_value_heads=2
    )
    vision = transformers.CLIPVisionConfig(**SIZES, image_size=32, patch_size=8)
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=image)
    model = enlarge_weights(transformers.LlavaForConditionalGeneration(config))
    with torch.no_grad():  # a trained one does not write what only images are
        model.lm_head.weight[[image, 1]] = 0
    model.save_pretrained(folder)
    side = {"height": 32, "width": 32}
    pixels = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    transformers.LlavaProcessor(
        pixels,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)


def save_detector(folder: Path) -> None:
    config = transformers.YolosConfig(
        **SIZES,
        image_size=[48, 64],
        patch_size=16,
        num_detection_tokens=5,
        id2label={0: "cat", 1: "remote", 2: "couch"},
        use_mid_position_embeddings=False,
    )
    enlarge_weights(transformers.YolosForObjectDetection(config)).save_pretrained(folder)
    processor = transformers.YolosImageProcessor(size={"height": 48, "width": 64})
    processor.save_pretrained(folder)


def save_encoder_decoder_detector(folder: Path) -> None:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 8, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    halves = ("encoder", "decoder")
    config = transformers.DetrConfig(
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        d_model=16,
        num_queries=4,
        id2label={0: "cat", 1: "remote"},
        **{f"{half}_layers": 2 for half in halves},
        **{f"{half}_attention_heads": 2 for half in halves},
        **{f"{half}_ffn_dim": 32 for half in halves},
    )
    enlarge_weights(transformers.DetrForObjectDetection(config)).save_pretrained(folder)
    processor = transformers.DetrImageProcessor(size={"height": 96, "width": 128})
    processor.save_pretrained(folder)


def save_video_classifier(folder: Path) -> None:
    config = transformers.VideoMAEConfig(
        **SIZES,
        image_size=32,
        patch_size=8,
        num_frames=4,
        tubelet_size=2,
        id2label={0: "archery", 1: "juggling balls", 2: "surfing water"},
    )
    enlarge_weights(transformers.VideoMAEForVideoClassification(config)).save_pretrained(folder)
    side = {"height": 32, "width": 32}
    processor = transformers.VideoMAEImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    processor.save_pretrained(folder)


def save_spectrogram_classifier(folder: Path) -> None:
    sizes = {"patch_size": 8, "frequency_stride": 8, "time_stride": 8}
    spectrogram = {"max_length": 32, "num_mel_bins": 16}
    labels = {0: "Speech", 1: "Music", 2: "Siren"}
    config = transformers.ASTConfig(**SIZES, **sizes, **spectrogram, id2label=labels)
    enlarge_weights(transformers.ASTForAudioClassification(config)).save_pretrained(folder)
    transformers.ASTFeatureExtractor(**spectrogram).save_pretrained(folder)


def save_waveform_classifier(folder: Path) -> None:
    config = transformers.Wav2Vec2Config(
        **SIZES,
        conv_dim=[8, 8],
        conv_kernel=[40, 8],
        conv_stride=[40, 8],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        id2label={0: "yes", 1: "no"},
    )
    enlarge_weights(transformers.Wav2Vec2ForSequenceClassification(config)).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)


def save_speech_recogniser(folder: Path) -> None:
    halves = ("encoder", "decoder")
    config = transformers.WhisperConfig(
        d_model=16,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=16,
        vocab_size=60,
        **{f"{half}_layers": 1 for half in halves},
        **{f"{half}_attention_heads": 2 for half in halves},
        **{f"{half}_ffn_dim": 24 for half in halves},
        **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id"), 0),
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )
    model = enlarge_weights(transformers.WhisperForConditionalGeneration(config))
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)


def save_segmenter(folder: Path) -> None:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        id2label={0: "wall", 1: "floor", 2: "animal"},
    )
    enlarge_weights(transformers.SegformerForSemanticSegmentation(config)).save_pretrained(folder)
    transformers.SegformerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)


MODELS: dict[str, Callable[[Path], None]] = {
    "google/vit-base-patch16-224": save_photo_classifier,
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": save_text_classifier,
    "HuggingFaceTB/SmolLM2-135M": save_language_model,
    "openai/clip-vit-base-patch32": save_clip,
    "llava-hf/llava-1.5-7b-hf": save_vision_language_model,
    "sentence-transformers/all-MiniLM-L6-v2": save_encoder,
    "hustvl/yolos-tiny": save_detector,
    "facebook/detr-resnet-50": save_encoder_decoder_detector,
    "MCG-NJU/videomae-base-finetuned-kinetics": save_video_classifier,
    "MIT/ast-finetuned-audioset-10-10-0.4593": save_spectrogram_classifier,
    "superb/wav2vec2-base-superb-ks": save_waveform_classifier,
    "openai/whisper-tiny": save_speech_recogniser,
    "nvidia/segformer-b0-finetuned-ade-512-512": save_segmenter,
}
