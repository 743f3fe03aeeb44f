"""Options of protocols by the types of their fields."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from whence import WhenceError
from whence.benchmark.protocols.base import BenchmarkProtocol
from whence.benchmark.protocols.options import list_option_types, read_option


@dataclass
class EveryType(BenchmarkProtocol):
    """A protocol with an option of each type."""

    name: ClassVar[str] = "every"

    flag: bool = False
    count: int = 1
    radius: float = 0.5
    word: str = ""
    unit: Literal["pixels", "patches"] = "pixels"
    side: Literal[2, 3] = 2
    fill: tuple[Literal["zero", "blur"], ...] = ("zero",)
    sizes: tuple[int, ...] = (1,)
    steps: int | None = None


def test_all_fields_are_options_but_not_the_labels():
    expected = ["flag", "count", "radius", "word", "unit", "side", "fill", "sizes", "steps"]
    assert list(list_option_types(EveryType)) == expected


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", True, True),
        ("count", "20", 20),
        ("count", 20, 20),
        ("radius", "0.25", 0.25),
        ("radius", 1, 1.0),
        ("radius", "1e-3", 1e-3),
        ("word", "a+b", "a+b"),
        ("unit", "patches", "patches"),
        ("side", "3", 3),
        ("side", 2, 2),
        ("fill", "zero", ("zero",)),
        ("fill", "zero+blur", ("zero", "blur")),
        ("fill", "blur + zero+blur", ("blur", "zero")),
        ("fill", ["blur"], ("blur",)),
        ("sizes", "3+5", (3, 5)),
        ("sizes", 3, (3,)),
        ("steps", "none", None),
        ("steps", "4", 4),
    ],
)
def test_values_and_texts(option, given, expected):
    found = read_option(EveryType, option, given)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("flag", "yes", "'flag' is true or false, not 'yes'"),
        ("flag", 1, "'flag' is true or false, not 1"),
        ("count", "2.5", "'count' is a whole number, not '2.5'"),
        ("count", 2.5, "'count' is a whole number, not 2.5"),
        ("count", True, "'count' is a whole number, not True"),
        ("radius", "far", "'radius' is a number, not 'far'"),
        ("word", 3, "'word' is a text, not 3"),
        ("unit", "pixel", "'unit' is 'pixels' or 'patches', not 'pixel'"),
        ("side", "4", "'side' is '2' or '3', not '4'"),
        ("fill", "zero+grey", r"'zero' or 'blur', or several of these joined by '\+', not"),
        ("fill", "", "joined by"),
        ("fill", [], "joined by"),
        ("sizes", "3+x", "'sizes' is a whole number, or several"),
        ("steps", "few", "'steps' is a whole number or none, not 'few'"),
        ("step", "4", "no option 'step'. Did you mean 'steps'"),
    ],
)
def test_what_is_none_of_the_type(option, given, message):
    with pytest.raises(WhenceError, match=message):
        read_option(EveryType, option, given)


def test_a_single_value_of_several_is_written_as_itself():
    assert EveryType().list_options()["fill"] == "zero"
    assert EveryType(fill=("zero", "blur")).list_options()["fill"] == ("zero", "blur")
