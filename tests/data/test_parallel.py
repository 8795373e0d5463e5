"""Work ahead in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gradmix.data.parallel import _AHEAD, map_ahead


def test_results_come_in_order_whichever_thread_is_first() -> None:
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_done.wait(10)
        if item == 1:
            second_done.set()
        return item * item

    assert list(map_ahead(work, range(200), threads=2)) == [k * k for k in range(200)]


def test_only_so_many_items_are_taken_in_advance() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(1000):
            taken.append(item)
            yield item

    results = map_ahead(abs, items())
    assert next(results) == 0
    assert len(taken) == _AHEAD
    assert next(results) == 1
    assert len(taken) == _AHEAD + 1


def test_an_error_is_raised_when_its_item_is_due() -> None:
    results = map_ahead(lambda item: 1 // item, [1, 1, 0, 1])
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_nothing_begins_after_the_caller_has_stopped() -> None:
    begun, stopped = [], threading.Event()

    def work(item: int) -> int:
        begun.append(item)
        if item:
            assert stopped.wait(10)
        return item

    results = map_ahead(work, range(1000), threads=1)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    at_most = len(begun) + 1  # one may begin while the caller stops
    stopped.set()
    for thread in threading.enumerate():
        if thread.name.startswith("gradmix-ahead"):
            thread.join(10)
    assert len(begun) <= at_most <= 3
