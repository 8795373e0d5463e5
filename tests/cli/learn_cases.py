"""`gradmix learn` in a process of its own, which may be killed."""

import os
import signal
import sys

from kill_cases import context

from gradmix.cli import main
from gradmix.training import checkpoint as checkpoints


def saving_always(arguments, said, saves):
    """The program, with a checkpoint at every event; standard error into a file.

    SIGKILL comes when it is about to write one more than `saves`.
    """
    checkpoints.EVERY_SECONDS, checkpoints.SHARE = 0.0, 1e9
    write, done = checkpoints.write_archive, []

    def write_or_die(*given):
        if len(done) == saves:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(write(*given))

    checkpoints.write_archive = write_or_die
    sys.argv = ["gradmix", *arguments]
    with open(said, "w") as sys.stderr:
        main()


def finish(said, *arguments, saves=None):
    """Run it to its end, or to its death after some saves; the exit code."""
    process = context.Process(target=saving_always, args=([*map(str, arguments)], said, saves))
    process.start()
    process.join()
    return process.exitcode
