"""What tests have other processes do: in a module of its own, which those can import."""

import os
import signal
import time


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def blocks_ctrl_c(_):
    time.sleep(0.2)  # so that one worker does not do it all
    return os.getpid(), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()
