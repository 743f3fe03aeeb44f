"""Groups take turns, and a row that fails leaves the others alone."""

from benchmarks.timing.rounds import Group, WarmGroup


def make_group(calls=1):
    done = []
    runs = {
        ("forward", ""): lambda: done.append("forward"),
        ("slow", "plain"): lambda: done.append("slow"),
        ("broken", "plain"): lambda: 1 / 0,
    }
    seconds = {"forward": 0.5, "slow": 8.0}

    def clock(run):
        run()
        return seconds[done[-1]]

    group = Group("plain", "Plain", {"batch": 2}, runs, calls=calls, clock=clock)
    return group, done


def test_what_is_slow_has_one_round_and_what_fails_none():
    group, done = make_group()
    forward, slow, broken = WarmGroup(group).measure(rounds=3, patience=5.0)
    assert done == ["forward", "slow", "forward", "slow", "forward", "forward"]
    assert forward["times"] == [500.0] * 3
    assert (slow["times"], slow["ratio"]) == ([8000.0], 16.0)
    assert broken["times"] == []
    assert broken["note"] == "not measured: ZeroDivisionError: division by zero"


def test_what_fails_in_a_round_is_left_out_of_the_next():
    group, done = make_group(calls=0)
    warm = WarmGroup(group)
    assert done == []
    assert warm.measure_round().keys() == {("forward", ""), ("slow", "plain")}
    assert warm.problems.keys() == {("broken", "plain")}
