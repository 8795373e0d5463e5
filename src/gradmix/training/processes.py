"""The processes of the other ranks: rank 0 starts, watches and ends them.

A rank ends with rank 0 at any moment, even while it imports. This module must therefore not import
PyTorch: that takes seconds, in which a new process would not watch rank 0.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from types import FrameType
from typing import TypeVar

from gradmix.errors import GradMixError, InputError, RankError

END_SECONDS = 10.0  # how long a rank may take to end after the last step
REASON_SECONDS = 3.0  # how long to wait for the reason why a rank ended
QUIET = 77  # exit code of a rank that ended because another one did
RESUME = "the same command resumes from the last checkpoint"

Answer = TypeVar("Answer")


class OtherRanks:
    """Processes for the ranks 1, 2, …; each calls a function.

    Args:
        orders: The function of each rank, which is pickled.

    Raises:
        InputError: If processes cannot be started, or a function cannot be pickled.
    """

    def __init__(self, orders: Sequence[Callable[[], object]]) -> None:
        self._processes: list[BaseProcess] = []
        self._lines: list[Connection] = []  # orders to the ranks, and their reports
        try:
            context = multiprocessing.get_context("spawn")
            with ctrl_c_waiting():
                for rank in range(1, len(orders) + 1):
                    line, other_end = context.Pipe()
                    arguments = (rank, other_end)
                    process = context.Process(target=_follow_orders, args=arguments, daemon=True)
                    process.start()
                    other_end.close()
                    self._processes.append(process)
                    self._lines.append(line)
            for line, order in zip(self._lines, orders, strict=True):
                line.send(order)
        except BrokenPipeError:
            return  # a rank ended; `watched_during` notices
        except (PicklingError, AttributeError, TypeError, RuntimeError, OSError) as error:
            self.end()
            raise InputError(
                f"devices is {len(orders) + 1}, but other processes cannot be started: {error}"
            ) from error

    def watched_during(self, connect: Callable[[], Answer]) -> Answer:
        """Return `connect()`.

        Raises:
            RankError: If a rank ends before it returns.
        """
        answer: futures.Future[Answer] = futures.Future()

        def call() -> None:
            try:
                answer.set_result(connect())
            except Exception as error:  # `result` raises it
                answer.set_exception(error)

        threading.Thread(target=call, daemon=True, name="connect-ranks").start()
        while not answer.done():
            futures.wait([answer], 0.05)
            if not all(process.is_alive() for process in self._processes):
                raise RankError("a rank ended before all were connected")
        return answer.result()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Raise RankError at once when a rank is lost, in the main thread, where signals arrive.

        Elsewhere, the next sum or gather fails.
        """
        main = threading.current_thread() is threading.main_thread()
        if not hasattr(signal, "SIGCHLD") or not main:
            yield
            return
        before = signal.getsignal(signal.SIGCHLD)

        def notice(number: int, frame: FrameType | None) -> None:
            if callable(before):
                before(number, frame)
            if self._lost() is not None:
                raise RankError("a rank ended")

        signal.signal(signal.SIGCHLD, notice)
        try:
            yield
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)

    def _lost(self) -> int | None:
        """Return the number of a rank that ended, except because of another one."""
        for rank, process in enumerate(self._processes, start=1):
            if not process.is_alive() and process.exitcode not in (0, QUIET):
                return rank
        return None

    def reason(self) -> str | None:
        """Return which rank ended and why; None if all live or ended because of another one."""
        until = time.monotonic() + REASON_SECONDS
        while (rank := self._lost()) is None:
            if time.monotonic() > until:
                return None
            wait([process.sentinel for process in self._processes if process.is_alive()], 0.1)
        code, line = self._processes[rank - 1].exitcode, self._lines[rank - 1]
        why = f"exit code {code}; does the program start under `if __name__ == '__main__':`?"
        if code is not None and code < 0:
            why = signal.Signals(-code).name
            why += " (is there enough memory?)" if why == "SIGKILL" else ""
        with suppress(EOFError, OSError):
            if line.poll():  # its own message
                why = str(line.recv())
        return f"rank {rank} ended: {why}"

    def join(self) -> None:
        """Wait for the ranks to end by themselves."""
        until = time.monotonic() + END_SECONDS
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """End all ranks now; files are written whole or not at all."""
        for process in self._processes:
            process.kill()
            process.join()
        for line in self._lines:
            line.close()


@contextmanager
def ctrl_c_waiting() -> Iterator[None]:
    """Delay Ctrl-C until afterwards; processes that are started within never receive it.

    Their parent receives it and ends them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover - on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the process of another rank -------------------------------------------------------------


def _follow_orders(rank: int, orders: Connection) -> None:
    """Call the function that rank 0 sends. A new process begins and ends here."""
    first, once = multiprocessing.parent_process(), threading.Lock()
    assert first is not None

    def leave(seconds: float | None = 1.0) -> None:
        """End this rank because another one ended; rank 1 says so if rank 0 cannot.

        A normal exit could wait for connections to ranks that are lost.
        """
        first.join(seconds)
        with once:
            if not first.is_alive() and rank == 1:
                print(f"rank 0 ended; {RESUME}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(QUIET)

    threading.Thread(target=leave, args=(None,), daemon=True, name="watch-rank-0").start()
    try:
        orders.recv()()
    except (RankError, EOFError):
        leave()
    except Exception as error:  # rank 0 shows it
        kind = "" if isinstance(error, GradMixError) else f"{type(error).__name__}: "
        orders.send(f"{kind}{error}"[:2000])
        os._exit(1)
