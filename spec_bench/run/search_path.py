"""Where Hydra finds the papers' recipes: ``rsd=exp1`` is ``experiments/rsd/exp1.yaml``."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from spec_bench.configs import experiments_dir

recipes_dir = experiments_dir


class RecipesSearchPath(SearchPathPlugin):
    """Makes each paper's folder below ``experiments`` a config group."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("recipes", f"file://{recipes_dir()}")


def register() -> None:
    """Tells Hydra; doing it twice changes nothing."""
    Plugins.instance().register(RecipesSearchPath)
