"""What a job does in a process that a launcher started: its folder, its GPUs, its failure.

Knows which launcher runs it from Hydra's config; the basic one runs jobs in the user's process and
nothing here concerns it.
"""

from __future__ import annotations

import os

from hydra.core.hydra_config import HydraConfig

from spec_bench.run.devices import OFFERED, VISIBLE, Claim, visible_devices
from spec_bench.run.pair import EngineSettings, PairSettings
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


def enter_folder() -> None:
    """Goes to the folder that the user is in."""
    os.chdir(HydraConfig.get().runtime.cwd)


def claim_gpus(pair: PairSettings, engine: EngineSettings) -> None:
    """Takes GPUs that no other worker uses, where the launcher gives none to a job.

    Args:
        pair: the job's, with what it states about its own models.
        engine: where it runs.

    Raises:
        ValueError: there are no GPUs for it.
    """
    launcher = str(HydraConfig.get().launcher._target_).rpartition(".")[2]
    if launcher in _CLAIMS and engine.device == "cuda":
        count = gpus_of_job(pair, engine)
        os.environ[VISIBLE] = ",".join(_claim.take(visible_devices(), count, _CLAIMS[launcher]))


def lost_worker(error: Exception) -> bool:
    """Whether a launcher's error says that a process died, and not that our code is wrong.

    joblib, submitit and Ray each raise classes of their own, and none of them needs to be here.
    """
    return type(error).__module__.partition(".")[0] in {"joblib", "submitit", "ray"}
