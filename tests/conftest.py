"""What every test shares: one torch thread, no display, no folder of the user."""

import os

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # suites that fight over two cores are slow and flaky
os.environ.setdefault("HF_HUB_OFFLINE", "1")
