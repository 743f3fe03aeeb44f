"""Cards of methods: their cost, and that the recommended ones are those of the results."""

import csv
import re
from pathlib import Path

import pytest

from whence import methods
from whence.web.method_cards import RECOMMENDED, describe_cost, is_slow, list_cards

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def read_table(name):
    with (RESULTS / name / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rank(rows, column):
    """Methods with default options, the best first."""
    plain = [row for row in rows if ":" not in row["method"]]
    return [row["method"] for row in sorted(plain, key=lambda row: -float(row[column]))]


def test_the_recommended_of_photos_lead_the_results():
    assert (
        tuple(rank(read_table("perturbation"), "difference, predicted")[:3])
        == (RECOMMENDED["image"])
    )


def test_the_recommended_of_texts_lead_the_results():
    rows = read_table("rationale")
    column = next(name for name in rows[0] if name.lower().startswith("token-f1"))
    ranked = [name for name in rank(rows, column) if methods.describe(name).class_specific]
    assert tuple(ranked[:3]) == RECOMMENDED["text"]


def test_the_recommended_of_stories_lead_the_results():
    table = (RESULTS / "stories.md").read_text(encoding="utf-8").split("## What removal does")[1]
    rows = re.findall(r"^\| \*{0,2}`([^`]+)`\*{0,2} \| 200 \| ([\d.]+) ", table, re.MULTILINE)
    plain = [(float(drop), name) for name, drop in rows if ":" not in name]
    assert tuple(name for _, name in sorted(plain, reverse=True)[:3]) == RECOMMENDED["generation"]


@pytest.mark.parametrize("kind", ["image", "text", "generation"])
def test_a_card_has_a_name_a_cost_and_an_idea(kind):
    cards = list_cards(kind)
    assert tuple(name for _, name in cards[:3]) == RECOMMENDED[kind]
    for card, name in cards:
        assert card.split("\n") == [name, describe_cost(name), methods.describe(name).summary]


def test_costs_are_those_that_methods_declare():
    assert describe_cost("whence") == f"quick, {methods.describe('whence').cost} passes"
    assert describe_cost("rollout") == "quick, 1 pass"
    assert describe_cost("gae") == "quick, 2 passes"
    assert describe_cost("rise") == "slow, many passes"
    assert is_slow("occlusion")
    assert not is_slow("tiba")
