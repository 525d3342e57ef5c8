"""Checks that need the decoders' modules, made before torch is imported.

What a decoder may contain is declared in modules that import torch, which takes longer than all
else that a refusal needs. The check is therefore first made in a forked copy of this process, where
a stand-in takes torch's place. What it refuses is refused here, in the same words; where it comes
to no end, it refuses nothing and the check is made again once torch is here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import entry_points

from spec_bench.system.stand_in import stand_in_for

_SLOW = ("torch", "transformers", "safetensors")
_OTHERS = ("spec_bench.policies", "spec_bench.rules", "spec_bench.drafters")


def refuse_before_torch(check: Callable[[], object]) -> None:
    """Makes a check where torch is only stood in for; nothing where torch is here already, and
    where it could mislead: with other packages' decoders, which may compute while imported.

    Raises:
        ValueError: as the check does.
    """
    if "torch" in sys.modules or not hasattr(os, "fork") or threading.active_count() > 1:
        return
    if any(entry_points(group=group) for group in _OTHERS):
        return
    if refusal := _refusal_elsewhere(check):
        raise ValueError(refusal)


def _refusal_elsewhere(check: Callable[[], object]) -> str:
    """What a check in a forked copy of this process refuses; "" where it refuses nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, _refusal(check).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        refusal = stream.read()
    os.waitpid(child, 0)
    return refusal


def _refusal(check: Callable[[], object]) -> str:
    """The message of a ``ValueError`` that a check raises; "" for any other end. It prints nothing:
    the check will be made again.
    """
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    stand_in_for(_SLOW)
    try:
        check()
    except ValueError as error:
        return str(error)
    except Exception:  # it computed with a stand-in
        return ""
    return ""
