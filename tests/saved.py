"""Small random models saved to a folder with their processor or tokenizer, and a photo."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

ANIMALS = ("cat", "dog", "crane")
WORDS = "a the film is was wonderful awful and very not good bad , . ! it".split()


def _perturb(model: nn.Module) -> nn.Module:
    """Enlarge the weights, so that scores differ."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def save_image_model(folder: Path, half: bool = True, **processor: object) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "crane"},
        label2id={"cat": 0, "dog": 1, "crane": 2},
    )
    model = _perturb(ViTForImageClassification(config))
    (model.half() if half else model).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}, **processor).save_pretrained(folder)
    return folder


def save_dense_model(folder: Path, task: str = "ObjectDetection") -> Path:
    """Save a detector of cats, dogs and cranes, a segmenter of them, or a model of depth."""
    import transformers

    sizes: dict = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"num_hidden_layers": 2, "patch_size": 8, "id2label": dict(enumerate(ANIMALS))}
    if task == "ObjectDetection":
        tokens = {"num_detection_tokens": 4, "use_mid_position_embeddings": False}
        config = transformers.YolosConfig(**sizes, **tokens, image_size=[32, 48])
        model = transformers.YolosForObjectDetection(config)
        processor = transformers.YolosImageProcessor(size={"height": 32, "width": 48})
    else:
        neck = {"neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8, "image_size": 32}
        neck |= {"backbone_out_indices": [0, 1, 2, 3], "use_auxiliary_head": False}
        config = transformers.DPTConfig(**{**sizes, "num_hidden_layers": 4}, **neck)
        model = getattr(transformers, f"DPTFor{task}")(config)
        if task == "DepthEstimation":
            model.head.head[4].bias.data += 5  # depths below 0 are cut off
        processor = transformers.DPTImageProcessor(size={"height": 32, "width": 32})
    _perturb(model).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def build_tokenizer(vocabulary: list[str], folder: Path):
    """Build BERT's tokenizer for these words; transformers 4 reads them from a file."""
    import transformers

    if int(transformers.__version__.split(".")[0]) >= 5:
        return transformers.BertTokenizer(vocab={word: n for n, word in enumerate(vocabulary)})
    file = folder / "vocab.txt"
    file.write_text("\n".join(vocabulary))
    return transformers.BertTokenizerFast(str(file))


def save_text_model(folder: Path, task: str = "SequenceClassification") -> Path:
    """Save a BERT for a task; without one it has no head."""
    import transformers

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##ly", "##s"]
    build_tokenizer(vocabulary, folder).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    model = getattr(transformers, f"BertFor{task}" if task else "BertModel")(config)
    _perturb(model).half().save_pretrained(folder)
    return folder


def make_photo(width: int = 60, height: int = 40, seed: int = 0) -> Image.Image:
    """Make a smooth image whose corners differ."""
    noise = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def make_dot() -> Image.Image:
    """Make the smallest photo that image processors take.

    Those of transformers 4 mistake the only row of a photo for its only channel.
    """
    import transformers

    side = 1 if int(transformers.__version__.split(".")[0]) >= 5 else 2
    return make_photo(side, side)
