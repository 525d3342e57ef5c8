"""A machine's GPUs: which this process may use, and exclusive claims on some of them.

A claim is locks on small files, which the system releases however the process ends. Imports no
torch: devices are chosen before CUDA starts.
"""

import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TextIO

from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.measure.energy.nvidia_smi import query
from spec_bench.system import files

VISIBLE = "CUDA_VISIBLE_DEVICES"
OFFERED = "SPEC_BENCH_DEVICES"  # the user's choice, if a launcher overwrites the above
_POLL_S = 0.5


def visible_devices(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs this process may use: those the environment names, else all of the machine."""
    named = environment.get(OFFERED, environment.get(VISIBLE) or None)
    if named is None:
        return [row[0] for row in _ask("uuid")]  # driver and CUDA may count in other orders
    return [name.strip() for name in named.split(",") if name.strip()]


def gpu_memory_gib() -> float | None:
    """Returns the smallest memory of this machine's GPUs, in GiB; None if there is none."""
    return min((float(row[0]) / 1024 for row in _ask("memory.total")), default=None)


class Claim:
    """GPUs that no other process claims, until this process ends."""

    def __init__(self, folder: Path | None = None) -> None:
        self.devices: tuple[str, ...] = ()
        self._folder = folder or Path(tempfile.gettempdir()) / f"spec_bench-{os.getuid()}"
        self._locks: list[TextIO] = []

    def take(self, devices: Sequence[str], count: int, wait: bool) -> tuple[str, ...]:
        """Claims the first free devices, of those that CUDA_VISIBLE_DEVICES names so; a second call
        with the same count changes nothing. Raises ValueError: there are not that many, or, unless
        it is to ``wait``, not that many are free; or others could have made the lock files.
        """
        if len(self.devices) == count:
            return self.devices
        if self.devices:
            raise ValueError(
                f"a worker that holds {len(self.devices)} GPUs got a job that needs {count}: sweep "
                "over pairs of one size, or use submitit_slurm"
            )
        if count > len(devices):
            raise ValueError(f"the job needs {count} GPUs, {len(devices)} are visible")
        with suppress(FileExistsError):
            self._folder.mkdir(0o700, parents=True)
        seen = self._folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o022:
            raise ValueError(f"GPUs are claimed in {self._folder}, a folder that others may change")
        names = identities(devices)
        while not self._try(devices, count, names):
            if not wait:
                raise ValueError(
                    f"no {count} of {len(devices)} GPUs are free: other jobs hold them, or "
                    "hydra.launcher.n_jobs is more than there are GPUs for"
                )
            time.sleep(_POLL_S)
        return self.devices

    def release(self) -> None:
        """Gives the devices back before the process ends."""
        for lock in self._locks:
            lock.close()
        self._locks, self.devices = [], ()

    def _try(self, devices: Sequence[str], count: int, names: Mapping[str, str]) -> bool:
        """One look; the choice as a whole is locked, so that no two workers hold half each."""
        with _lock(self._folder / "choice.lock", wait=True) or nullcontext():
            held: dict[str, TextIO] = {}
            for device in devices:
                path = self._folder / f"gpu-{names[device]}.lock"
                if len(held) < count and (lock := _lock(path)):
                    held[device] = lock
            if len(held) < count:
                for lock in held.values():
                    lock.close()
                return False
            self._locks, self.devices = list(held.values()), tuple(held)
            return True


def identities(devices: Sequence[str]) -> dict[str, str]:
    """Returns what tells each device from all others, whatever it is called: its UUID if known."""
    uuids = {row[0]: row[-1] for row in _ask("index", "uuid")}
    named = {}
    for name in devices:
        matching = [uuid for uuid in uuids.values() if name and uuid.startswith(name)]
        named[name] = uuids.get(name, matching[0] if len(matching) == 1 else name)
    return named


def _lock(path: Path, wait: bool = False) -> TextIO | None:
    """The locked file, its content left as it is, no link; None if another process has it."""
    try:
        stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    except OSError as error:
        raise ValueError(f"GPUs cannot be claimed: {path}: {error.strerror}") from None
    if files.lock(stream, wait=wait):
        return stream
    stream.close()
    return None


def _ask(*fields: str) -> list[list[str]]:
    """Returns each GPU's values from the driver's program; none if there is no driver."""
    try:
        return query(fields)
    except UnmeteredError:
        return []
