"""What every test runs under: one thread each, since the runner starts a process per core, and repeatable draws."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["VITRAIL_CACHE"] = os.devnull  # what this machine has fetched is no part of a test
os.environ.pop("COLUMNS", None)  # a runner may set it, and pages of the docs show wide tables
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; commands under test inherit it

settings.register_profile("vitrail", deadline=None, derandomize=True)
settings.load_profile("vitrail")
