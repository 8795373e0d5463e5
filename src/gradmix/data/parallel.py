"""Work ahead in threads: results in order, a bounded number in advance."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = min(8, os.cpu_count() or 1)
_AHEAD = 64  # results in advance: two batches of photos, 10 MB at 224x224
_T = TypeVar("_T")
_R = TypeVar("_R")


def map_ahead(work: Callable[[_T], _R], items: Iterable[_T], threads: int = 0) -> Iterator[_R]:
    """Yield `work(item)` of each item in order, computed in advance by threads.

    Pillow and PyTorch release Python's lock, so decoding overlaps with the caller's computation.
    An error of `work` is raised when its item is due. When the caller stops, by an error, Ctrl-C or
    `close`, the items that no thread has begun are dropped.

    Args:
        work: A function that threads may call at the same time.
        items: The items; they are taken when a thread needs one.
        threads: Number of threads; 0 is one per core, at most 8.

    Example:
        >>> list(map_ahead(str.upper, "abc"))
        ['A', 'B', 'C']
    """
    pool = ThreadPoolExecutor(threads or THREADS, thread_name_prefix="gradmix-ahead")
    waiting: deque[Future[_R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
