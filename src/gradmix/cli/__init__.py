"""The command line: parse, call, print. PyTorch is imported only when something is computed."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

__all__ = ["main"]

CLEAN_UP_SECONDS = 5.0
"""How long further interrupts are ignored after one."""


def main() -> None:
    """Run the command line.

    An error of gradmix is one line and exit code 2, an error of the operating system, such as a
    full disk, is one line and exit code 1, and Ctrl-C is exit code 130.
    """
    interrupts = _Interrupts()
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        if interrupts.last is not None:  # a library turned the interrupt into another error
            sys.exit(130)
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # while Python shuts down


def _run() -> None:
    """Run the command and turn errors into exit codes."""
    from gradmix.cli.commands import app  # takes a while, during which Ctrl-C must work
    from gradmix.cli.terminal import show_error
    from gradmix.errors import GradMixError, RankError

    try:
        app(standalone_mode=True)
    except RankError as error:
        show_error(error)
        sys.stderr.flush()
        os._exit(2)  # a normal exit would wait for connections to ranks that are lost
    except GradMixError as error:
        show_error(error)
        sys.exit(2)
    except OSError as error:
        show_error(error)
        sys.exit(1)


class _Interrupts:
    """Raises KeyboardInterrupt at Ctrl-C, but ignores another one during clean-up."""

    def __init__(self) -> None:
        self.last: float | None = None  # when the last one took effect
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.last is not None and now - self.last < CLEAN_UP_SECONDS:
            return
        self.last = now
        raise KeyboardInterrupt
