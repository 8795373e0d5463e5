"""A rank in a process of its own, which ends with rank 0 at any moment, even while it imports.

This module must not import PyTorch: that takes seconds, in which nobody would watch rank 0.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import Connection

from gradmix.errors import GradMixError, RankError

QUIET = 77  # exit code of a rank that ended because another one did
RESUME = "the same command resumes from the last checkpoint"


def begin(rank: int, orders: Connection) -> None:
    """Do what rank 0 sends: a function with its arguments. A new process begins and ends here."""
    leave = _Leaving(rank)
    threading.Thread(target=leave.with_first, daemon=True, name="watch-rank-0").start()
    try:
        function, given = orders.recv()
        function(*given)
    except (RankError, EOFError):
        leave.quietly()
    except Exception as error:  # rank 0 shows it
        kind = "" if isinstance(error, GradMixError) else f"{type(error).__name__}: "
        orders.send(f"{kind}{error}"[:2000])
        os._exit(1)


class _Leaving:
    """Ends a rank at once: a normal exit could wait for connections to ranks that are lost."""

    def __init__(self, rank: int) -> None:
        self._rank, self._once = rank, threading.Lock()
        self._first = multiprocessing.parent_process()

    def with_first(self) -> None:
        """Wait until rank 0 ends, then end this rank."""
        assert self._first is not None
        self._first.join()
        self.quietly()

    def quietly(self) -> None:
        """End this rank because another one ended; rank 1 says so if rank 0 cannot."""
        assert self._first is not None
        self._first.join(1.0)
        with self._once:
            if not self._first.is_alive() and self._rank == 1:
                print(f"rank 0 ended; {RESUME}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(QUIET)
