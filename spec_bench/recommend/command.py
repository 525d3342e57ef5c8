"""The command line of ``spec-bench recommend``; what it does is in ``recommend``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.jobs.app import settings_of
from spec_bench.jobs.config.compose import one_line, recipe_arguments, register
from spec_bench.settings.configs import conf_dirs
from spec_bench.system import files

_NOT_HERE = {
    "plan": "decodes what it chooses from; a job has plan=true",
    "sink.wandb.enabled": "logs nothing; the job that it recommends does",
}


def main(overrides: Sequence[str]) -> tuple[int, Path | None]:
    """The command; prints all candidates and the answer in three lines.

    Args:
        overrides: as those of a job.

    Returns:
        The exit status, 2 for settings that cannot be right, and the file the page is made from.
    """
    register()
    try:
        arguments = ["experiment=recommend", "sink=quiet", "sink.progress=true"]
        arguments += recipe_arguments(list(overrides))
        with initialize_config_dir(str(conf_dirs()[0]), version_base="1.3"):
            config = compose("config", overrides=arguments)
        for key, asked in _NOT_HERE.items():
            if value := OmegaConf.select(config, key):
                raise ValueError(f"{key}={value}: recommend {asked}")
        settings = settings_of(config)
        # They import torch, which settings that cannot be right do not wait for.
        from spec_bench.recommend.answer import answer_of, counted_of, needed_of, stated, table_of
        from spec_bench.recommend.recommend import recommend

        answer = recommend(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        print(f"spec_bench: {one_line(error)}", file=sys.stderr)
        return 2, None
    lines = [*table_of(answer), *counted_of(answer), *needed_of(answer), ""]
    print("\n".join([*lines, *answer_of(answer, overrides)]))
    stem = f"recommend-{settings.pair.name}-{settings.task.name}.json"
    kept = files.results_file(settings.results, settings.name).with_name(stem)
    files.write_json(kept, stated(settings, answer, overrides))
    return 0, kept
