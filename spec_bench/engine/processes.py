"""The processes that one model is split over: which one this is, and waiting for the others.

``torchrun`` starts them and says so in the environment; transformers joins them when it loads a
split model. All of them decode the same prompts with the same draws, so they stay in step.
"""

from __future__ import annotations

import os


def rank() -> int:
    """This process's number; 0 if it is the only one. Only process 0 writes anything."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """How many processes there are; 0 if ``torchrun`` started none."""
    return int(os.environ.get("WORLD_SIZE", "0"))


def count_here() -> int:
    """How many of them run on this machine, each with its GPU."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or count()


def wait_for_all() -> None:
    """Returns once every process is here; at once if none has been joined."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()
