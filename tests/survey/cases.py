"""All cases of the survey, by name."""

from tests.survey import (
    dense,
    language,
    media,
    pairs,
    photos,
    sequences,
    texts,
    timm_photos,
    vision_language,
)
from tests.survey.case import SurveyCase

MODULES = (
    texts,
    language,
    sequences,
    photos,
    timm_photos,
    dense,
    media,
    pairs,
    vision_language,
)
CASES: dict[str, SurveyCase] = {case.name: case for module in MODULES for case in module.CASES}
