"""The Hydra application: a composed config in, result files and an exit status out.

Exit status: 0 all cells complete, 1 some cell failed, 2 the settings cannot be right (one line
says why, nothing was loaded or decoded), 130 interrupted; a rerun resumes.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.metrics import check_references, check_score
from spec_bench.records import CellResult
from spec_bench.run.cells import load_decoder
from spec_bench.run.job import run_job
from spec_bench.run.pair import with_own_name
from spec_bench.run.paths import config_dir
from spec_bench.run.search_path import register
from spec_bench.run.settings import JobSettings, build_settings
from spec_bench.run.store import CellStore
from spec_bench.sinks.console import print_table
from spec_bench.sinks.csv import merge_csv, read_csv
from spec_bench.sinks.wandb import LoggedCell, Wandb, build_wandb, log_job
from spec_bench.tasks import with_metrics

log = logging.getLogger(__name__)
FULL_ERROR = "HYDRA_FULL_ERROR"
_wants_trace = os.environ.get(FULL_ERROR) == "1"
_statuses: list[int] = []  # of this process's jobs: Hydra hands no value back to main


def main() -> None:
    """Runs the application and exits with its status."""
    _statuses.clear()
    register()
    # Hydra would print its errors over several lines and exit with 1; we want them raised.
    os.environ[FULL_ERROR] = "1"
    application = hydra.main(
        version_base="1.3", config_path=str(config_dir()), config_name="config"
    )
    try:
        application(_job)()
    except (HydraException, OmegaConfBaseException) as error:
        if _wants_trace:
            raise
        _complain(error)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        sys.exit(130)
    sys.exit(max(_statuses, default=0))


def _job(config: DictConfig) -> int:
    """One job; its status is kept for ``main``."""
    for chatty in ("absl", "httpx", "wandb"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        results = run_config(config)
        status = int(any(result.status == "failed" for result in results))
        _statuses.append(status)
    except (ValueError, OmegaConfBaseException) as error:
        if _wants_trace:
            raise
        status = _complain(error)
    return status


def run_config(config: DictConfig) -> list[CellResult]:
    """Checks a composed config, runs its job, hands the results to the sinks.

    Raises:
        ValueError: settings that cannot be right.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    folders = _config_folders()
    plain["pair"] = with_own_name(plain["pair"], folders)
    plain["task"] = with_metrics(plain["task"])
    settings = build_settings(plain, lambda name: load_decoder(folders, name))
    for score in settings.task.scores:
        check_score(score)
        check_references(score, [g for each in settings.examples for g in each.references])
    wandb = build_wandb(settings.sink["wandb"], settings.results / settings.name)
    log.info("%s, %s: %d cells", settings.pair.name, settings.task.name, len(settings.cells))
    results = run_job(settings)
    _hand_over(settings, results, wandb)
    return results


def _hand_over(settings: JobSettings, results: list[CellResult], wandb: Wandb | None) -> None:
    """CSV always; table and W&B as configured."""
    folder = settings.results / settings.name
    merge_csv(folder / "results.csv", results)
    if settings.sink["table"]:
        print_table(results)
        print(f"results: {folder / 'results.csv'}")
    if wandb is not None:
        pair, task = settings.pair.name, settings.task.name
        rows = [row for row in read_csv(folder / "results.csv") if row["pair"] == pair]
        cells = [_logged(settings.results, result) for result in results]
        log_job(wandb, cells, [row for row in rows if row["task"] == task])


def _logged(results: Path, result: CellResult) -> LoggedCell:
    """A cell's row, resolved settings and records, as its folder holds them."""
    store = CellStore(results, result.run_id)
    config = yaml.safe_load((store.folder / "config.yaml").read_text(encoding="utf-8"))
    return LoggedCell(result, dict(config), tuple(store.load().values()), store.folder)


def _config_folders() -> list[Path]:
    """The folders Hydra composes from, a user's ``--config-dir`` included."""
    if not HydraConfig.initialized():
        return [config_dir()]
    sources = HydraConfig.get().runtime.config_sources
    return [Path(source.path) for source in sources if source.schema == "file"]


def _complain(error: Exception) -> int:
    """One line on what cannot be right."""
    message = " ".join(str(error).split("Config search path:")[0].split())
    print(f"spec_bench: {message}", file=sys.stderr)
    _statuses.append(2)
    return 2
