"""Where a sweep's jobs run: the GPUs they need, and what a job does in a launcher's process.

The launchers' presets ask by OmegaConf resolvers: ``${gpus_of:null}`` is the number of GPUs that
the largest job of a sweep needs, or the argument if jobs need none; ``${workers_here:}`` is how
many jobs this machine runs at once. A process started by a launcher goes to the user's folder,
claims GPUs that no other worker uses, and reports its failure to the user's process. None of this
concerns the basic launcher, which runs jobs in the user's process. Like ``devices``, it imports no
torch.
"""

import os
from collections.abc import Iterator, Sequence
from math import ceil

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from spec_bench.jobs.config.compose import asked_of
from spec_bench.jobs.config.model_files import BYTES
from spec_bench.jobs.config.pair import EngineSettings, PairSettings, pair_sizes, placed
from spec_bench.jobs.sweep.devices import OFFERED, VISIBLE, Claim, gpu_memory_gib, visible_devices

# The share of a GPU's memory for weights; the rest is for caches, the drafts and the passes.
WEIGHTS_SHARE = 0.85


def gpus_needed(parameters: int, bytes_each: int, gpu_memory_gib: float) -> int:
    """Returns how many GPUs hold the weights of a pair of so many parameters in all."""
    return max(1, ceil(parameters * bytes_each / (WEIGHTS_SHARE * gpu_memory_gib * 2**30)))


def gpus_of_job(pair: PairSettings, engine: EngineSettings) -> int:
    """How many GPUs a job needs: none on a CPU, one unless the target is spread over several."""
    engine = placed(engine, pair.target)
    if not engine.on_cuda:
        return 0
    if pair.target_device_map is None:
        return 1
    memory_gib = engine.gpu_memory_gib or gpu_memory_gib()
    if memory_gib is None:
        raise ValueError("engine.gpu_memory_gib must say how large a GPU is: none is visible here")
    parameters = [size.parameters for size in pair_sizes(pair)]
    if parameters[0] is None:
        raise ValueError(f"pair.target_parameters must say how large {pair.target!r} is")
    known = sum(count for count in parameters if count is not None)
    return gpus_needed(known, BYTES[pair.dtype or engine.dtype], memory_gib)


def _most_gpus(root: DictConfig) -> int:
    """Returns the need of the largest job that Hydra's sweeper makes of the command line."""
    asked = (asked_of(config) for _, config in jobs_of(root))
    return max((gpus_of_job(each.pair, each.engine) for each in asked), default=0)


def jobs_of(root: DictConfig) -> Iterator[tuple[Sequence[str], DictConfig]]:
    """Yields each job's overrides and its config, composed as a launcher composes it."""
    loader = GlobalHydra.instance().config_loader()
    swept = [f"{key}={value}" for key, value in (root.hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(
        [*swept, *root.hydra.overrides.task]
    )
    for job in BasicSweeper.split_arguments(overrides, None)[0]:
        yield job, loader.load_sweep_config(root, job)


def register_resolvers() -> None:
    """Tells OmegaConf; doing it twice changes nothing."""

    def gpus_of(none: int | None, *, _root_: DictConfig) -> int | None:
        """Returns the most that any job of the sweep needs: a job array has one size."""
        return _most_gpus(_root_) or none

    def workers_here(*, _root_: DictConfig) -> int:
        """One per GPU, or group of GPUs that a job needs; else one per ``engine.threads`` cores."""
        if needed := _most_gpus(_root_):
            return max(1, len(visible_devices()) // needed)
        return max(1, (os.cpu_count() or 1) // (_root_.engine.threads or 1))

    OmegaConf.register_new_resolver("gpus_of", gpus_of, replace=True)
    OmegaConf.register_new_resolver("workers_here", workers_here, replace=True)


_claim = Claim()


def offer_devices() -> None:
    """Keeps the GPUs that the user allows in sight of workers, counted as by the driver."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else all else that runs is served first
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if VISIBLE in os.environ:
        os.environ.setdefault(OFFERED, os.environ[VISIBLE])


def place_in_sweep() -> int | None:
    """Returns the job's number in the sweep that Hydra runs it in; None if it is the only one."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return None
    return int(HydraConfig.get().job.num)


def claim_gpus(pair: PairSettings, engine: EngineSettings) -> None:
    """Takes GPUs that no other worker uses, if the launcher gives none; does not wait."""
    if not str(HydraConfig.get().launcher._target_).endswith("JoblibLauncher"):
        return
    kind, _, index = placed(engine, pair.target).device.partition(":")
    if kind == "cuda" and index:
        # The one asked for; what is visible must stay, or its number would change.
        named = visible_devices()[int(index) :][:1]
        _claim.take(named, 1, wait=False)
    elif kind == "cuda":
        taken = _claim.take(visible_devices(), gpus_of_job(pair, engine), wait=False)
        os.environ[VISIBLE] = ",".join(taken)


def disturbing() -> str | None:
    """Returns the warning about jobs that run at the same time on one machine's cores, if any."""
    config = HydraConfig.get()
    together = getattr(config.launcher, "n_jobs", 1) or 1
    if str(config.mode).rpartition(".")[2] != "MULTIRUN" or together == 1:
        return None
    count = "as many jobs as there are cores" if together < 0 else f"{together} jobs"
    return (
        f"{count} run at the same time and share this machine's cores, which disturbs their times: "
        "for times set hydra.launcher.n_jobs=1, or leave out hydra/launcher"
    )
