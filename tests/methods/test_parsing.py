import pytest

from whence import WhenceError
from whence.methods import parse_methods


def test_names_options_and_rules():
    a, b, c, d = parse_methods("tiba, rollout:start_layer=1,tiba:rules=reference,start_layer=1,gae")
    assert (a.label, a.name, a.options, a.rules) == ("tiba", "tiba", {}, "stable")
    assert (b.label, b.options) == ("rollout:start_layer=1", {"start_layer": 1})
    assert (c.label, c.rules) == ("tiba:rules=reference,start_layer=1", "reference")
    assert c.options == {"start_layer": 1}
    assert d.name == "gae"
    assert d.explain_arguments() == {"method": "gae", "rules": "stable"}


def test_lists_and_other_rules():
    (only,) = parse_methods(["tiba", "tiba"], rules="paper")
    assert only.rules == "paper"
    (own,) = parse_methods(["transformer_attribution:gradients=balanced"])
    assert own.options == {"gradients": "balanced"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one method"),
        ("tibba", "Did you mean 'tiba'"),
        ("tiba:depth=1", "has no option 'depth'"),
        ("tiba:start_layer=x", "must be a whole number"),
        ("tiba:rules=lax", "lax"),
        ("tiba:start_layer", "tiba:NAME=VALUE"),
    ],
)
def test_sentences(text, message):
    with pytest.raises(WhenceError, match=message):
        parse_methods(text)


def test_the_reading_that_says_where_a_target_lies():
    whence, evidence, later, other = parse_methods(
        ["whence", "whence:reading=evidence", "whence:start_layer=1", "gae:start_layer=1"]
    )
    located = whence.to_locating()
    assert (located.name, located.label) == ("whence", "whence")
    assert located.options == {"reading": "location"}
    assert whence.options == {}
    assert evidence.to_locating() == evidence, "what was asked for stays"
    assert later.to_locating().options == {"reading": "location", "start_layer": 1}
    assert other.to_locating() == other
