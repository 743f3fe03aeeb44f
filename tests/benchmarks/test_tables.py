"""Tables of a run's rows, written out by hand."""

from benchmarks.timing.tables import format_comparison, format_run, format_side_by_side

ROWS = [
    ("forward", "", [10.0, 10.0, 10.0, 10.0, 10.0]),
    ("gae", "plain", [40.0, 41.0, 42.0, 43.0, 44.0]),
    ("tiba", "plain", [50.0, 60.0, 100.0, 100.0, 120.0]),
]


def test_a_table_has_fastest_median_spread_and_forwards(make_run):
    run = make_run("aaaa", ROWS)
    head, _, title, table = format_run(run).split("\n\n")
    assert head.startswith("Run aaaa of 2026-01-01: a processor, 2 threads; whence 1, torch 2")
    assert title == "**Plain: a model**"
    assert table.splitlines() == [
        "| batch | what | ms | median | forwards | rounds |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
        "| 1 | forward | 10.0 ±0 % | 10.0 | 1.00 ±0 % | 5 |",
        "| 1 | gae | 40.0 ±2 % | 42.0 | 4.00 ±2 % | 5 |",
        "| 1 | tiba | 50.0 ±20 % ! | 100.0 | 5.00 ±20 % ! | 5 |",
    ]


def test_variants_stand_side_by_side(make_run):
    rows = [*ROWS[:2], ("gae", "compiled", [20.0] * 5)]
    assert format_side_by_side(make_run("aaaa", rows).rows, "variant").splitlines() == [
        "| batch | what | plain: ms | plain: forwards | compiled: ms | compiled: forwards |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
        "| 1 | forward | 10.0 ±0 % |  |  |  |",
        "| 1 | gae | 40.0 ±2 % | 4.00 ±2 % | 20.0 ±0 % | 2.00 ±0 % |",
    ]


def test_a_run_without_variants_has_nothing_to_compare(make_run):
    assert format_comparison(make_run("aaaa", ROWS).rows).startswith("Nothing in this run")
