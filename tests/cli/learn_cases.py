"""`gradmix learn` in a process of its own, which may be killed."""

import sys

from kill_cases import context

from gradmix.cli import main
from gradmix.training import checkpoint as checkpoints


def saving_often(arguments, said):
    """The program, with half of the time going into checkpoints; standard error into a file."""
    checkpoints.EVERY_SECONDS, checkpoints.SHARE = 0.01, 0.5
    checkpoints.FIRST_GUESS = (0.0, 1e99)
    sys.argv = ["gradmix", *arguments]
    with open(said, "w") as sys.stderr:
        main()


def program(said, *arguments):
    process = context.Process(target=saving_often, args=([*map(str, arguments)], said))
    process.start()
    return process
