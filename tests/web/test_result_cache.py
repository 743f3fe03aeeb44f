"""The cache keeps the results that were used last."""

from whence.web.result_cache import ResultCache


def test_the_least_recently_used_result_is_dropped():
    cache = ResultCache(2)
    assert [cache.get_or_compute(key, lambda key=key: key.upper()) for key in "abac"] == [*"ABAC"]
    assert len(cache) == 2
    assert cache.get_or_compute("a", lambda: "again") == "A"
    assert cache.get_or_compute("b", lambda: "again") == "again"
