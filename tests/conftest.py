"""For all tests: one thread each, no downloads."""

import os

import torch

torch.set_num_threads(1)  # as many tests run at once as there are cores
os.environ["GRADMIX_OFFLINE"] = "1"
