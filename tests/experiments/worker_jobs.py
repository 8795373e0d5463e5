"""What tests have other processes do: in a module of its own, which those can import."""

import os
import signal
import time


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()
