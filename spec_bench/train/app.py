"""The Hydra application of ``spec-bench train``: a composed config in, heads out.

Exit status: 0 heads are written, 1 a disk takes no more, 2 the settings or the data cannot be right
(one line says why), 130 interrupted; the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.jobs.config.compose import CHATTY, register, shown_resolved
from spec_bench.settings.configs import conf_dir
from spec_bench.settings.fields import one_line
from spec_bench.system import files, signals
from spec_bench.train.settings import build_train_settings

FULL_ERROR = "HYDRA_FULL_ERROR"
_wants_trace = os.environ.get(FULL_ERROR) == "1"
_statuses: list[int] = []  # of this process's trainings: Hydra hands no value back to main


def main() -> None:
    """Runs the application and exits with its status."""
    _statuses.clear()
    sys.argv = shown_resolved(sys.argv)
    register()
    # Hydra would print its errors over several lines and exit with 1; we want them raised.
    os.environ[FULL_ERROR] = "1"
    application = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")
    try:
        with signals.raising():
            application(_job)()
    except (HydraException, OmegaConfBaseException) as error:
        if _wants_trace:
            raise
        _complain(error)
    except KeyboardInterrupt:
        if not signals.came():
            print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
    sys.exit(max(_statuses, default=0))


def _job(config: DictConfig) -> None:
    """One training; its status is kept for ``main``."""
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        settings = build_train_settings(plain)
        if (file := settings.asked.data.file) is not None and not file.is_file():
            raise ValueError(f"data.path: no file {str(file)!r}")
        from spec_bench.train.train import train_heads

        train_heads(settings)
        _statuses.append(0)
    except OSError as error:
        refused = files.refused(error)
        if _wants_trace or refused is None:
            raise
        print(f"spec_bench.train: {refused}; the same command goes on", file=sys.stderr)
        _statuses.append(1)
    except (ValueError, OmegaConfBaseException) as error:
        if _wants_trace:
            raise
        _complain(error)


def _complain(error: Exception) -> None:
    """One line on what cannot be right."""
    message = one_line(str(error).split("Config search path:")[0])
    print(f"spec_bench.train: {message}", file=sys.stderr)
    _statuses.append(2)
