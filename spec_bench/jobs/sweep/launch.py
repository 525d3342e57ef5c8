"""Where a sweep's jobs run: the GPUs that they need and claim.

The launchers' presets use OmegaConf resolvers: ``${gpus_of:null}`` is the number of GPUs that the
largest job of a sweep needs, or the argument if jobs need none; ``${workers_here:}`` is the number
of jobs that this machine runs at once. A process started by a launcher goes to the user's folder,
claims GPUs that no other worker uses, and reports its failure to the user's process. A claim is a
set of locks on small files, which the system releases however the process ends. None of this
concerns the basic launcher, which runs jobs in the user's process. Imports no torch, because
devices are chosen before CUDA starts.
"""

import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from math import ceil
from pathlib import Path
from typing import TextIO

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from spec_bench.jobs.config.application import SweepConfigs
from spec_bench.jobs.config.compose import parse_request
from spec_bench.jobs.config.flags import MINIMA, UNITS, USUAL_VALUES
from spec_bench.jobs.config.model_files import BYTES
from spec_bench.jobs.config.pair import (
    EngineSettings,
    PairSettings,
    read_pair_sizes,
    resolve_device_and_compile,
    resolve_dtype,
)
from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.measure.energy.power_sampler import query_gpus
from spec_bench.system import files
from spec_bench.system.errors import UsageError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
OFFERED_VARIABLE = (
    "SPEC_BENCH_DEVICES"  # the user's choice, because a launcher may overwrite ``VISIBLE_VARIABLE``
)
_POLL_S = 0.5
_SUBMITIT_LOCAL = "LocalLauncher"  # submitit's launcher that starts all jobs at once


def list_visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Lists the GPUs that this process may use: those named in the environment, else all."""
    names = environment.get(OFFERED_VARIABLE, environment.get(VISIBLE_VARIABLE) or None)
    if names is None:
        return [row[0] for row in _query_gpus("uuid")]  # driver and CUDA may count in other orders
    return [name.strip() for name in names.split(",") if name.strip()]


def find_smallest_gpu_gib() -> float | None:
    """Returns the memory of this machine's smallest GPU, in GiB; None if there is no GPU."""
    return min((float(row[0]) / 1024 for row in _query_gpus("memory.total")), default=None)


class GpuReservation:
    """GPUs reserved for this process until it ends."""

    def __init__(self, folder: Path | None = None) -> None:
        self.devices: tuple[str, ...] = ()
        self._folder = folder or Path(tempfile.gettempdir()) / f"spec_bench-{os.getuid()}"
        self._locks: list[TextIO] = []

    def claim(self, devices: Sequence[str], count: int, wait: bool) -> tuple[str, ...]:
        """Claims the first ``count`` free ``devices`` and returns them; a second call with the same
        count changes nothing. Raises UsageError if there are fewer devices, if fewer are free and
        ``wait`` is False, or if other users could have made the lock files.
        """
        if len(self.devices) == count:
            return self.devices
        if self.devices:
            raise UsageError(
                f"a worker that holds {len(self.devices)} GPUs got a job that needs {count}: sweep "
                "over pairs of one size, or use submitit_slurm"
            )
        if count > len(devices):
            raise UsageError(f"the job needs {count} GPUs, {len(devices)} are visible")
        with suppress(FileExistsError):
            self._folder.mkdir(0o700, parents=True)
        folder_stat = self._folder.lstat()
        if (
            not stat.S_ISDIR(folder_stat.st_mode)
            or folder_stat.st_uid != os.getuid()
            or folder_stat.st_mode & 0o022
        ):
            raise UsageError(f"GPUs are claimed in {self._folder}, a folder that others may change")
        names = identify_gpus(devices)
        while not self._try_to_claim(devices, count, names):
            if not wait:
                raise UsageError(
                    f"no {count} of {len(devices)} GPUs are free: other jobs hold them, or "
                    "hydra.launcher.n_jobs is more than there are GPUs for"
                )
            time.sleep(_POLL_S)
        return self.devices

    def release(self) -> None:
        """Releases the devices before the process ends."""
        for lock in self._locks:
            lock.close()
        self._locks = []
        self.devices = ()

    def _try_to_claim(self, devices: Sequence[str], count: int, names: Mapping[str, str]) -> bool:
        """Tries once to claim; locks the whole choice, so that two workers
        cannot hold half each.
        """
        with _open_locked(self._folder / "choice.lock", wait=True) or nullcontext():
            lock_by_device: dict[str, TextIO] = {}
            for device in devices:
                path = self._folder / f"gpu-{names[device]}.lock"
                if len(lock_by_device) < count and (lock := _open_locked(path)):
                    lock_by_device[device] = lock
            if len(lock_by_device) < count:
                for lock in lock_by_device.values():
                    lock.close()
                return False
            self._locks = list(lock_by_device.values())
            self.devices = tuple(lock_by_device)
            return True


def identify_gpus(devices: Sequence[str]) -> dict[str, str]:
    """Maps each device's name to its UUID, or to itself if the UUID is unknown."""
    uuids = {row[0]: row[-1] for row in _query_gpus("index", "uuid")}
    identity_by_name = {}
    for name in devices:
        matches = [uuid for uuid in uuids.values() if name and uuid.startswith(name)]
        identity_by_name[name] = uuids.get(name, matches[0] if len(matches) == 1 else name)
    return identity_by_name


def _open_locked(path: Path, wait: bool = False) -> TextIO | None:
    """Opens and locks a regular file; None if another process has locked it."""
    try:
        stream: TextIO = files.open_regular_to_write(path)
    except OSError as error:
        raise UsageError(f"GPUs cannot be claimed: {path}: {error.strerror}") from None
    if files.lock_file(stream, may_wait=wait):
        return stream
    stream.close()
    return None


def _query_gpus(*fields: str) -> list[list[str]]:
    """Queries values of each GPU with the driver's program; [] if there is no driver."""
    try:
        return query_gpus(fields)
    except UnmeteredError:
        return []


# Share of a GPU's memory for weights; the rest is for caches, drafts and forward passes.
WEIGHTS_SHARE = 0.85


def count_gpus_for_weights(parameter_count: int, bytes_each: int, gpu_memory_gib: float) -> int:
    """Computes the number of GPUs that hold a pair's weights, ``parameter_count`` in all."""
    return max(1, ceil(parameter_count * bytes_each / (WEIGHTS_SHARE * gpu_memory_gib * 2**30)))


def count_gpus_of_job(pair: PairSettings, engine: EngineSettings) -> int:
    """Counts the GPUs that a job needs: 0 on a CPU, 1 unless the target is spread over several."""
    engine = resolve_device_and_compile(engine, pair.target)
    if not engine.uses_cuda:
        return 0
    if pair.target_device_map is None:
        return 1
    memory_gib = engine.gpu_memory_gib or find_smallest_gpu_gib()
    if memory_gib is None:
        raise UsageError(
            "engine.gpu_memory_gib must say how large a GPU is, such as engine.gpu_memory_gib=80: "
            "none is visible here"
        )
    parameters = [size.parameters for size in read_pair_sizes(pair)]
    if parameters[0] is None:
        raise UsageError(f"pair.target_parameters must say how large {pair.target!r} is")
    parameter_count = sum(count for count in parameters if count is not None)
    return count_gpus_for_weights(parameter_count, BYTES[resolve_dtype(engine, pair)], memory_gib)


def _count_gpus_of_largest_job(root: DictConfig, configs: SweepConfigs) -> int:
    """Counts the GPUs that the largest job of a sweep needs."""
    requests = (parse_request(config) for _, config in configs.compose_jobs(root))
    return max((count_gpus_of_job(request.pair, request.engine) for request in requests), default=0)


def describe_launch(config: DictConfig, job_count: int) -> str:
    """Describes how a sweep of ``job_count`` jobs would be launched. Raises UsageError if a
    launcher's number is too small.
    """
    name = config.hydra.runtime.choices["hydra/launcher"]
    launcher = config.hydra.launcher
    ray = launcher.get("ray", {})
    texts = []
    for key, value in {
        **launcher,
        **ray.get("init", {}),
        **ray.get("remote", {}),
    }.items():
        if isinstance(value, int) and value < (minimum := MINIMA.get(key, value)):
            raise UsageError(f"hydra.launcher.{key} must be >= {minimum}, got {value}")
        if key == "n_jobs" and value == -1:
            value = os.cpu_count()
        if value and key != "ray" and key[0] != "_" and str(value) not in USUAL_VALUES.get(key, ()):
            texts.append(UNITS.get(key, f"{key} {{}}").format(value))
    manner = "here, one after the other" if name == "basic" else f"by hydra/launcher={name}: "
    return f"would run {job_count} job{'s' * (job_count != 1)} {manner}{', '.join(texts)}"


def register_launcher_resolvers(configs: SweepConfigs) -> None:
    """Registers ``gpus_of`` and ``workers_here`` for a sweep's jobs with OmegaConf."""

    def gpus_of(none: int | None, *, _root_: DictConfig) -> int | None:
        """Returns the GPUs of the sweep's largest job, because a job array has one size."""
        return _count_gpus_of_largest_job(_root_, configs) or none

    def workers_here(*, _root_: DictConfig) -> int:
        """Returns the number of jobs at once: by GPUs per job, else by ``engine.threads``."""
        if gpu_count := _count_gpus_of_largest_job(_root_, configs):
            return max(1, len(list_visible_gpus()) // gpu_count)
        return max(1, (os.cpu_count() or 1) // (_root_.engine.threads or 1))

    OmegaConf.register_new_resolver("gpus_of", gpus_of, replace=True)
    OmegaConf.register_new_resolver("workers_here", workers_here, replace=True)


_claim = GpuReservation()


def export_gpu_environment() -> None:
    """Sets environment variables so that workers see the user's GPUs, in the driver's order."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else workers get the lowest priority
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if VISIBLE_VARIABLE in os.environ:
        os.environ.setdefault(OFFERED_VARIABLE, os.environ[VISIBLE_VARIABLE])


def get_sweep_job_number() -> int | None:
    """Returns the job's number in Hydra's sweep; None outside a sweep."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().job, "num"):
        return None
    return int(HydraConfig.get().job.num)


def claim_gpus_of_local_worker(pair: PairSettings, engine: EngineSettings) -> None:
    """Claims GPUs that no other worker uses, in a worker of a launcher that assigns none; sets
    ``CUDA_VISIBLE_DEVICES`` and does not wait.
    """
    if not str(HydraConfig.get().launcher._target_).endswith(("JoblibLauncher", _SUBMITIT_LOCAL)):
        return
    kind, _, index = resolve_device_and_compile(engine, pair.target).device.partition(":")
    if kind == "cuda" and index:
        # The requested GPU; the visible GPUs must not change, or its number would change.
        names = list_visible_gpus()[int(index) :][:1]
        _claim.claim(names, 1, wait=False)
    elif kind == "cuda":
        devices = _claim.claim(list_visible_gpus(), count_gpus_of_job(pair, engine), wait=False)
        os.environ[VISIBLE_VARIABLE] = ",".join(devices)
