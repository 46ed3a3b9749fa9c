"""Settings that every test shares."""

import gc
import os

from hypothesis import settings

# Several test processes share few cores; torch's default threads would make them collapse.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=300)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Tests import a million objects that stay; looking for garbage among them would take a tenth of
# the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
