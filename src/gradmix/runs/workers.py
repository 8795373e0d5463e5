"""Work in several processes of this machine, which end when the one that wants it does."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from gradmix.errors import WorkerError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WATCH_SECONDS = 0.5
"""How often a worker looks whether it is still wanted."""


def in_processes(
    work: Callable[[Item], Answer], items: Sequence[Item], jobs: int
) -> Iterator[Answer]:
    """`work(item)` of all items, as soon as each is there, `jobs` at a time.

    With one job in this process itself. WorkerError if a worker dies, which ends the others, too.
    """
    if jobs == 1:
        yield from map(work, items)
        return
    # Imported here, as it takes a while.
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    parallel = Parallel(
        n_jobs=jobs,
        backend="loky",
        batch_size=1,
        return_as="generator_unordered",
        max_nbytes=None,
        initializer=watch_parent,
        initargs=(os.getpid(),),
    )
    answers: Any = iter(())
    try:
        with _ctrl_c_waiting():
            answers = parallel(delayed(work)(item) for item in items)
        for answer in answers:  # noqa: UP028 - `yield from` would close it with its warning
            yield answer
    except Exception as error:
        if _was_ctrl_c(error):  # over which joblib stumbled
            raise KeyboardInterrupt from error
        if not isinstance(error, TerminatedWorkerError):
            raise
        codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
        raise WorkerError("a worker process died" + (f" ({codes[1]})" if codes else "")) from error
    finally:
        # What goes wrong in ending workers must not hide why; they see to their end themselves.
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # of the generator, that there was more to come
            if hasattr(answers, "close"):
                answers.close()


def _was_ctrl_c(error: BaseException | None) -> bool:
    """Whether it came up while a Ctrl-C was handled."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def watch_parent(parent: int) -> None:
    """End this process soon after its parent has, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)  # in the middle of anything: results are written whole or not at all

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


@contextmanager
def _ctrl_c_waiting() -> Iterator[None]:
    """Ctrl-C takes effect afterwards; processes started within it does not reach at all.

    It is for their parent, which ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover - on Windows
        yield
        return
    resource_tracker.ensure_running()  # joblib would start it now, which lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
