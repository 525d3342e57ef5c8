"""The tiny family, made once, and jobs on it in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from spec_bench.jobs.app import run_config
from spec_bench.records.types import CellResult
from spec_bench.settings.configs import conf_dir
from tests.jobs.tiny import RunJob, make_family, make_task, overrides


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    make_family(folder)
    make_task(folder)
    return folder


@pytest.fixture
def run_job(family: Path, tmp_path: Path) -> RunJob:
    """Runs a job with these overrides; results go to ``tmp_path / "results"`` unless said."""

    def run(*more: str, results: Path | None = None) -> list[CellResult]:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = compose(
                "config", overrides=overrides(family, results or tmp_path / "results", *more)
            )
        return run_config(config)

    return run
