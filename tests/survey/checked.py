"""What the scores of a model are compared with, and by which tests."""

from __future__ import annotations

from tests.families import decoders
from tests.survey.case import SurveyCase

AUTHORS, FORMULAS = "authors' results", "formulas"
_DECODERS = {
    "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM": f'"{name}"'
    for family, (name, _) in decoders.FAMILIES.items()
    if family != "Jamba"  # there, methods of attention are refused
}


def _as_named(*models: str) -> dict[str, str]:
    return {model: model for model in models}


# By the kind of comparison: for each file, the models, and how each is named in the file.
TESTS: dict[str, dict[str, dict[str, str]]] = {
    AUTHORS: {
        "tests/test_golden.py": {
            "timm:vit_tiny_patch16_224": "VisionTransformer",
            "BertForSequenceClassification": "BertForSequenceClassification",
        },
        "tests/methods/test_gae_clip.py": {"CLIPModel": "CLIP"},
        "tests/methods/test_gae_detr.py": {"DetrForObjectDetection": "DETR"},
        "tests/methods/test_gae_lxmert.py": {"LxmertForQuestionAnswering": "LXMERT"},
        "tests/methods/test_gae_visualbert.py": {"VisualBertForQuestionAnswering": "VisualBERT"},
    },
    FORMULAS: {
        # tests/test_models.py compares all of these.
        "tests/zoo.py": {
            "AlbertForSequenceClassification": '_text("Albert"',
            "BeitForImageClassification": "BeitForImageClassification",
            "DeiTForImageClassification": "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher": "DeiTForImageClassificationWithTeacher",
            "Dinov2ForImageClassification": "Dinov2ForImageClassification",
            "Dinov2WithRegistersForImageClassification": "Dinov2WithRegistersForImage",
            "DistilBertForSequenceClassification": '_text("DistilBert"',
            "ElectraForSequenceClassification": '_text("Electra"',
            "MPNetForSequenceClassification": '_text("MPNet"',
            "RobertaForSequenceClassification": '_text("Roberta"',
            "ViTForImageClassification": "ViTForImageClassification",
            "timm:deit_tiny_distilled_patch16_224": "deit_tiny_distilled_patch16_224",
            "torchvision:VisionTransformer": "VisionTransformer",
        },
        "tests/families/decoders.py": _DECODERS,
        "tests/families/test_choices.py": _as_named("BertForMultipleChoice"),
        "tests/families/test_dense.py": {
            **_as_named("SegformerForSemanticSegmentation", "YolosForObjectDetection"),
            "ConditionalDetrForObjectDetection": '"ConditionalDetr"',
            "TableTransformerForObjectDetection": '"TableTransformer"',
        },
        "tests/families/test_encoder_decoders.py": _as_named(
            "BartForConditionalGeneration",
            "MarianMTModel",
            "T5ForConditionalGeneration",
            "WhisperForConditionalGeneration",
        ),
        "tests/families/test_encoders.py": {
            **_as_named("Wav2Vec2ForSequenceClassification", "XLNetForSequenceClassification"),
            "BertForMaskedLM": "MaskedLM",
            "BertForTokenClassification": "TokenClassification",
            "ModernBertForMaskedLM": "ModernBert",
            "ModernBertForTokenClassification": "ModernBert",
            "RobertaForMaskedLM": "Roberta",
            "RobertaForTokenClassification": "Roberta",
        },
        "tests/families/test_groups.py": {
            **_as_named("HieraForImageClassification", "TimesformerForVideoClassification"),
            "timm:maxxvit.MaxxVit": "MaxxVitCfg",
            "timm:samvit_base_patch16_224": "samvit_base_patch16",
            "timm:twins_svt_small": "twins_svt_small",
        },
        "tests/families/test_merging.py": {
            **_as_named(
                "FunnelForSequenceClassification",
                "PerceiverForSequenceClassification",
                "PvtForImageClassification",
                "SegformerForImageClassification",
            ),
            "timm:cait_xxs24_224": "cait_xxs24_224",
            "timm:levit_128s": "levit_128s",
            "timm:pit_ti_224": "pit_ti_224",
        },
        "tests/families/test_pair_heads.py": _as_named(
            "BlipForImageTextRetrieval", "BridgeTowerForImageAndTextRetrieval"
        ),
        "tests/families/test_pairs.py": {
            f"{name}Model": f'"{name}"'
            for name in ("AltCLIP", "Blip", "CLIPSeg", "ChineseCLIP", "MetaClip2", "Siglip")
        },
        "tests/families/test_several_inputs.py": _as_named("OwlViTForObjectDetection"),
        "tests/families/test_vision.py": _as_named(
            "BeitForSemanticSegmentation", "SiglipForImageClassification"
        ),
        "tests/families/test_vision_language.py": {"LlavaForConditionalGeneration": "build_llava"},
        "tests/families/test_windows.py": {
            "SwinForImageClassification": '"Swin"',
            "Swinv2ForImageClassification": '"Swinv2"',
            "timm:swin_tiny_patch4_window7_224": "swin_tiny_patch4_window7_224",
            "timm:swinv2_tiny_window8_256": "swinv2_tiny_window8_256",
        },
        "tests/methods/test_gae_cross_attention.py": _as_named(
            "BartForSequenceClassification", "T5ForSequenceClassification"
        ),
    },
}


def find_check(case: SurveyCase) -> str:
    """Find what the scores of a case are compared with; nothing if they are only seen to run."""
    for kind, files in TESTS.items():
        for names in files.values():
            if case.model in names or f"{case.library}:{case.model}" in names:
                return kind
    return ""
