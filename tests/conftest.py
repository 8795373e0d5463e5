"""For all tests: one thread each, no downloads, no test that fails because a machine is busy."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)  # as many tests run at once as there are cores
os.environ["GRADMIX_OFFLINE"] = "1"
settings.register_profile("gradmix", deadline=None)
settings.load_profile("gradmix")
