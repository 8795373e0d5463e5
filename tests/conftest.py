"""For all tests: one thread each, no downloads, no test that fails because a machine is busy."""

import os
import signal

import torch
from hypothesis import settings

torch.set_num_threads(1)  # as many tests run at once as there are cores
os.environ["GRADMIX_OFFLINE"] = "1"
settings.register_profile("gradmix", deadline=None)
settings.load_profile("gradmix")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell's background jobs have it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or Ctrl-C could not be tried
