"""What one call of ``nvidia-smi`` answers: its GPUs, and what their driver knows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence

from spec_bench.measure.energy.devices import Gpu
from spec_bench.measure.energy.settings import POWER_FIELDS
from spec_bench.measure.energy.window import UnmeteredError

PROGRAM = "nvidia-smi"
ANSWER_S = 30.0  # a driver without persistence takes seconds to wake up
FORMAT = "--format=csv,noheader,nounits"


def query(wanted: Iterable[str]) -> list[list[str]]:
    """One answer of the program: a list of cells for each GPU.

    Raises:
        UnmeteredError: it is missing or fails; the message is its own first line.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise UnmeteredError(f"no {PROGRAM} on PATH")
    command = [program, f"--query-gpu={','.join(wanted)}", FORMAT]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnmeteredError(f"{PROGRAM} failed: {type(error).__name__}") from None
    if done.returncode:
        said = (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[0]
        raise UnmeteredError(f"{PROGRAM} failed: {said[:120]}")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line]


def find_gpus() -> list[Gpu]:
    """All GPUs of the machine.

    Raises:
        UnmeteredError: as ``query``, or its answer is not a list of GPUs.
    """
    try:
        return [Gpu(int(index), uuid) for index, uuid in query(("index", "uuid"))]
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} gives no list of GPUs") from None


def find_fields(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The power fields that the driver knows and that are numbers on all of these GPUs.

    Raises:
        UnmeteredError: there is none; the message is about ``power.draw``.
    """
    found, refused = [], UnmeteredError(f"{PROGRAM} has no power field")
    for field in POWER_FIELDS:
        try:
            cells = {row[0]: row[-1] for row in query(("index", field))}
            for gpu in gpus:
                text = cells.get(str(gpu.index), "nothing")
                if not _is_number(text):
                    raise UnmeteredError(f"{PROGRAM} gives {field} as {text} on GPU {gpu.index}")
        except UnmeteredError as error:
            refused = error
        else:
            found.append(field)
    if not found:
        raise refused
    return tuple(found)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
