"""Work in threads beside the one that makes the items."""

import threading

import pytest
import torch

from whence.report.cores import can_share_cores, map_in_workers, share_cores


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_item_is_worked_on_once(workers):
    assert sorted(map_in_workers(lambda n: n * n, iter(range(50)), workers)) == [
        n * n for n in range(50)
    ]


def test_few_items_are_made_ahead():
    made, may_go_on = [], threading.Event()

    def make():
        for number in range(20):
            made.append(number)
            if len(made) == 5:  # one more than a worker may have waiting, and the next
                may_go_on.set()
            yield number

    results = map_in_workers(lambda n: may_go_on.wait(0.2) and n, make(), 1)
    next(results)
    assert len(made) <= 5
    assert len(list(results)) == 19


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_ends_the_work(error):
    def fail(number):
        if number == 3:
            raise error
        return number

    with pytest.raises(error):
        list(map_in_workers(fail, range(1000), 2))


def test_each_thread_gets_its_share_of_the_cores():
    before = torch.get_num_threads()
    try:
        for cores, workers, each in ((1, 1, 1), (2, 2, 1), (8, 4, 2)):
            torch.set_num_threads(cores)
            with share_cores() as count:
                shares = set(map_in_workers(lambda _: torch.get_num_threads(), range(9), count))
                assert (count, shares, torch.get_num_threads()) == (workers, {each}, each)
            assert torch.get_num_threads() == cores
        with share_cores(is_shared=False) as count:
            assert (count, torch.get_num_threads()) == (0, 8)
    finally:
        torch.set_num_threads(before)


def test_texts_keep_to_one_thread(vit, bert):
    assert can_share_cores([vit])
    assert not can_share_cores([vit, bert])
