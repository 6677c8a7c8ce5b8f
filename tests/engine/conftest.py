"""One thread: suites that fight over the cores are slow."""

import torch

torch.set_num_threads(1)
