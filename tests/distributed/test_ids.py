"""Sets of ids."""

import random

from whence.distributed.ids import IdSet


def test_known_ids_are_those_of_a_plain_set():
    draw = random.Random(0)
    ids = [f"{draw.random()}/é{number}" for number in range(3000)]
    some = ids[::3]
    asked = IdSet(some)
    plain = set(some)
    assert asked.find_known(ids) == [one in plain for one in ids]
    assert len(asked) == asked.count_distinct() == len(plain)
    assert IdSet().find_known(ids[:2]) == [False, False]


def test_repeated_ids_are_found():
    ids = IdSet(["a", "b", "a", "c", "c", "c"])
    assert len(ids) == 6
    assert ids.count_distinct() == 3
    repeated = ids.list_repeated()
    assert repeated.find_known(["a", "b", "c"]) == [True, False, True]
    assert len(repeated) == 2
