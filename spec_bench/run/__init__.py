"""Settings in, a results table out: jobs, cells, run ids, the store and the Hydra application.

The only layer that knows Hydra. It knows nothing about tensors, trees or probabilities. Called as
a function, the package is ``spec_bench.api.run``: ``spec_bench.run("task=xsum", prompts=5)``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class _Callable(ModuleType):
    """This package, which has the name of the public function."""

    def __call__(self, *overrides: str, **settings: Any) -> pd.DataFrame:
        """See ``spec_bench.api.run``."""
        from spec_bench.api import run

        return run(*overrides, **settings)


sys.modules[__name__].__class__ = _Callable
