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
    interrupted: list[float] = []  # when interrupts took effect

    def interrupt(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not interrupted or now - interrupted[-1] >= CLEAN_UP_SECONDS:
            interrupted.append(now)
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        if interrupted:  # a library turned the interrupt into another error
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
    except (GradMixError, OSError) as error:
        show_error(error)
        if isinstance(error, RankError):
            sys.stderr.flush()
            os._exit(2)  # a normal exit would wait for connections to ranks that are lost
        sys.exit(2 if isinstance(error, GradMixError) else 1)
