"""Where Hydra finds configs besides our own ``conf``: recipes, and what other packages bring.

``rsd=exp1`` is ``experiments/rsd/exp1.yaml``. Another package names itself as an entry point,

    [project.entry-points."spec_bench.configs"]
    mine = "my_package"

and lays its folder out like ours: ``my_package/conf/decoder/coin.yaml`` is then ``decoder=coin``
(and ``cells=[coin:4x3]``), ``conf/task`` and ``conf/pair`` likewise, and
``my_package/experiments/mypaper/exp1.yaml`` is ``mypaper=exp1``. Where two files have one name,
ours is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from spec_bench.configs import conf_dirs, experiments_dir, experiments_dirs

recipes_dir = experiments_dir


class MoreConfigs(SearchPathPlugin):
    """Makes each paper's folder below ``experiments`` a config group, and adds others' groups."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in (*experiments_dirs(), *conf_dirs()[1:]):
            search_path.append(folder.parent.name, f"file://{folder}")


def recipe_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line with a plus before recipes that the list of defaults does not name."""
    papers = {folder.name for top in experiments_dirs()[1:] for folder in top.iterdir()}
    return [f"+{each}" if each.partition("=")[0] in papers else each for each in arguments]


def register() -> None:
    """Tells Hydra; doing it twice changes nothing."""
    Plugins.instance().register(MoreConfigs)
