import numpy as np

from whence.benchmark.columns import concatenate_columns, to_columns


def test_columns_of_parts_of_different_kinds():
    whole = concatenate_columns(
        [
            to_columns([{"sample": "a", "x": 1.0, "c": [1.0, 2.0]}]),
            to_columns([{"sample": "b", "error": "broken"}]),
            to_columns([{"sample": "c", "x": None, "c": [3.0, 4.0]}]),
        ]
    )
    assert whole["sample"].tolist() == ["a", "b", "c"]
    assert np.isnan(whole["x"]).tolist() == [False, True, True]
    assert whole["c"][2].tolist() == [3, 4]
    assert np.isnan(whole["c"][1]).all()
    assert whole["error"].tolist() == [None, "broken", None]
