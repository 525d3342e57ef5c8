"""What a sweep's seconds are split by is there to be timed."""

import runpy
from functools import reduce
from importlib import import_module
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "bench" / "sweep.py"


def test_every_function_that_is_timed_exists():
    for place in runpy.run_path(str(SCRIPT))["TIMED"]:
        module, _, path = place.partition(":")
        assert callable(reduce(getattr, path.split("."), import_module(module))), place
