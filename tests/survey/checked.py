"""What the scores of a model are compared with, and by which tests."""

from __future__ import annotations

from tests.survey.case import SurveyCase

AUTHORS, FORMULAS = "authors' results", "formulas"

# By the kind of comparison: for each file of tests, the models or families that it compares.
TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    AUTHORS: {
        "tests/test_golden.py": ("timm:vit_tiny_patch16_224", "BertForSequenceClassification"),
    },
    FORMULAS: {
        "tests/test_models.py": (
            "ViTForImageClassification",
            "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher",
            "BeitForImageClassification",
            "Dinov2ForImageClassification",
            "Dinov2WithRegistersForImageClassification",
            "RobertaForSequenceClassification",
            "ElectraForSequenceClassification",
            "AlbertForSequenceClassification",
            "MPNetForSequenceClassification",
            "DistilBertForSequenceClassification",
            "torchvision:VisionTransformer",
        ),
        "tests/families/test_vision.py": ("SiglipForImageClassification",),
    },
}


def find_check(case: SurveyCase) -> str:
    """Find what the scores of a case are compared with; nothing if they are only seen to run."""
    for kind, files in TESTS.items():
        for names in files.values():
            if case.model in names or f"{case.library}:{case.model}" in names:
                return kind
    return ""
