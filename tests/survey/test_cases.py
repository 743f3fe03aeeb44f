"""The list of cases: many, each with a name of its own, of every kind of model."""

from tests.survey.cases import CASES, MODULES


def test_every_case_has_its_own_name():
    assert len(CASES) == sum(len(module.CASES) for module in MODULES) >= 250


def test_tasks_of_every_kind():
    tasks = {case.task for case in CASES.values()}
    assert {
        "image classification",
        "text classification",
        "language model",
        "text to text",
        "object detection",
        "semantic segmentation",
        "video classification",
        "speech recognition",
        "image and text similarity",
        "image and text to text",
    } <= tasks
