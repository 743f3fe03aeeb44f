"""What is said of models is what the tests' own list of cases shows."""

import re
from pathlib import Path

import pytest

from tests.survey.cases import CASES
from tests.survey.checked import TESTS, find_check
from tests.survey.record import PAGE, ROOT, insert_tables
from tests.survey.trial import METHODS, Trial
from whence import WhenceError
from whence.models.tried import read_tried_models

RENEW = "run python -m tests.survey.run --write"


def test_the_record_has_every_case():
    tried = read_tried_models()
    assert [one.name for one in tried.models] == list(CASES), RENEW
    assert tried.methods == METHODS, RENEW
    for one in tried.models:
        case = CASES[one.name]
        assert (one.family, one.task) == (case.family, case.task), RENEW
        assert one.checked == find_check(case), RENEW


def test_the_page_shows_the_record():
    page = PAGE.read_text(encoding="utf-8")
    assert insert_tables(page) == page, RENEW


def test_what_is_refused_has_a_sentence():
    refused = [
        said
        for one in read_tried_models().models
        for said, names in one.refused.items()
        if {"whence", "tiba", "gae", "rollout"} & set(names)
    ]
    assert all(said.endswith(".") and said[0].isupper() for said in refused)
    assert not [said for said in refused if re.match(r"\w+(Error|Exception): ", said)]


def test_nearly_all_models_are_explained():
    tried = read_tried_models()
    for method in ("whence", "gae", "input_x_gradient"):
        assert tried.count_running(method) >= 380, method


def test_checked_models_are_in_the_tests_that_check_them():
    models = {
        name for case in CASES.values() for name in (case.model, f"{case.library}:{case.model}")
    }
    for files in TESTS.values():
        for file, names in files.items():
            source = (ROOT / file).read_text(encoding="utf-8")
            assert all(mention in source for mention in names.values()), file
            assert set(names) <= models, set(names) - models


@pytest.mark.parametrize("name", ["Swin", "swin", "SwinForImageClassification"])
def test_a_family_by_any_spelling(name):
    found = read_tried_models().find_family(name)
    assert "transformers:SwinForImageClassification" in {one.name for one in found}


def test_a_family_that_was_not_tried():
    with pytest.raises(WhenceError, match=r"No model of a family 'swim' was tried. Did you mean"):
        read_tried_models().find_family("swim")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_methods_run_as_the_record_says(name):
    transformers = pytest.importorskip("transformers")
    tried = read_tried_models()
    if transformers.__version__ != tried.releases["transformers"]:
        pytest.skip("the record is of another release of transformers")
    (recorded,) = (one for one in tried.models if one.name == name)
    trial = Trial(CASES[name])
    running = tuple(m for m in METHODS if trial.try_method(m).kind == "runs")
    assert running == recorded.methods, RENEW


def test_every_file_of_cases_is_listed():
    from tests.survey.cases import MODULES

    here = Path(__file__).parent
    listed = {Path(module.__file__).name for module in MODULES}
    with_cases = {p.name for p in here.glob("*.py") if re.search(r"^CASES\b", p.read_text(), re.M)}
    assert with_cases - {"cases.py"} == listed
