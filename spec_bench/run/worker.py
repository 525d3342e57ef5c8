"""What a job does in a process that a launcher started: its folder, its GPUs, its failure.

Knows which launcher runs it from Hydra's config; the basic one runs jobs in the user's process and
nothing here concerns it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from spec_bench.run.devices import OFFERED, VISIBLE, Claim, visible_devices
from spec_bench.run.resources import gpus_of_job

# Launchers that give no device to a job; whether a job may wait for one. A worker of joblib keeps
# its devices for the whole sweep: whoever waited for them would wait until its end.
_CLAIMS = {"JoblibLauncher": False, "LocalLauncher": True}
_claim = Claim()


class JobError(Exception):
    """A job in a worker ended with a status that is not 0; it travels to the user's process.

    Args:
        status: the exit status.
        message: one line.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status, self.message = status, message


def offer_devices() -> None:
    """Keeps the GPUs that the user allows in sight of workers whose launcher overwrites them."""
    if VISIBLE in os.environ:
        os.environ.setdefault(OFFERED, os.environ[VISIBLE])


def enter(config: DictConfig, pair: Mapping[str, Any]) -> None:
    """Makes this process fit for a job: the user's folder, GPUs that no other worker uses.

    Args:
        config: the job's, composed.
        pair: of these, the pair, with what it states about its own models.

    Raises:
        ValueError: there are no GPUs for it.
    """
    hydra = HydraConfig.get()
    os.chdir(hydra.runtime.cwd)
    config.sink.progress = False  # bars of several processes would overwrite each other
    launcher = str(hydra.launcher._target_).rpartition(".")[2]
    if launcher in _CLAIMS and config.engine.device == "cuda":
        count = gpus_of_job(pair, config.engine)
        os.environ[VISIBLE] = ",".join(_claim.take(visible_devices(), count, _CLAIMS[launcher]))


def lost_worker(error: Exception) -> bool:
    """Whether a launcher's error says that a process died, and not that our code is wrong.

    joblib, submitit and Ray each raise classes of their own, and none of them needs to be here.
    """
    return type(error).__module__.partition(".")[0] in {"joblib", "submitit", "ray"}
