"""Work in several processes, which end when their parent ends.

joblib's backend loky starts the processes: unlike `concurrent.futures` it notices workers that are
killed, and it does not import the user's script again.
"""

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
"""How often a worker checks that its parent is alive."""


def in_processes(
    work: Callable[[Item], Answer], items: Sequence[Item], jobs: int
) -> Iterator[Answer]:
    """Yield `work(item)` for all items as they finish, `jobs` at a time.

    One job runs in this process itself.

    Raises:
        WorkerError: If a worker dies. The other workers then end, too.
    """
    if jobs == 1:
        yield from map(work, items)
        return
    # Imported here because it takes a while.
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
        if _was_ctrl_c(error):  # joblib raised another error while it handled Ctrl-C
            raise KeyboardInterrupt from error
        if not isinstance(error, TerminatedWorkerError):
            raise
        codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
        raise WorkerError("a worker process died" + (f" ({codes[1]})" if codes else "")) from error
    finally:
        # An error while workers end must not hide the first one; they end by themselves, too.
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # the generator warns that it was not finished
            if hasattr(answers, "close"):
                answers.close()


def _was_ctrl_c(error: BaseException | None) -> bool:
    """Return whether an error was raised while Ctrl-C was handled."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def watch_parent(parent: int) -> None:
    """End this process soon after its parent ends, even if the parent is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)  # at any point: files are written whole or not at all

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


@contextmanager
def _ctrl_c_waiting() -> Iterator[None]:
    """Delay Ctrl-C until afterwards; processes that are started within never receive it.

    Their parent receives it and ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover - on Windows
        yield
        return
    resource_tracker.ensure_running()  # joblib would start it, which unblocks Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
