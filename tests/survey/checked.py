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

# By the kind of comparison: for each file, the models, and how each is named in the file.
TESTS: dict[str, dict[str, dict[str, str]]] = {
    AUTHORS: {
        "tests/test_golden.py": {
            "timm:vit_tiny_patch16_224": "VisionTransformer",
            "BertForSequenceClassification": "BertForSequenceClassification",
        },
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
        "tests/families/test_vision.py": {
            "SiglipForImageClassification": "SiglipForImageClassification",
        },
    },
}


def find_check(case: SurveyCase) -> str:
    """Find what the scores of a case are compared with; nothing if they are only seen to run."""
    for kind, files in TESTS.items():
        for names in files.values():
            if case.model in names or f"{case.library}:{case.model}" in names:
                return kind
    return ""
