"""The processes that one model is split over: which one this is, and waiting for the others.

``torchrun`` starts them and says so in the environment; transformers joins them when it loads a
split model. All of them decode the same prompts with the same draws. A bit of a draft's logits may
differ all the same, where a library splits a sum in its own way on each GPU; so what hangs on
logits and decides what is decoded next is the first process's, on all of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")


def process_rank() -> int:
    """This process's number; 0 if it is the only one. Only process 0 writes anything."""
    return int(os.environ.get("RANK", "0"))


def count_torchrun_processes() -> int:
    """Returns how many processes there are; 0 if ``torchrun`` started none."""
    return int(os.environ.get("WORLD_SIZE", "0"))


def count_local_torchrun_processes() -> int:
    """Returns how many of ``torchrun``'s processes run on this machine, each with its GPU."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or count_torchrun_processes()


def is_distributed() -> bool:
    """Returns whether processes have been joined that decode together."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def wait_for_processes() -> None:
    """Waits for every process; returns at once if there is only one."""
    import torch.distributed as dist

    if is_distributed():
        dist.barrier()


def copy_from_first_process(*tensors: Tensor) -> None:
    """Copies the first process's values to every process, in place; the shapes must be equal."""
    import torch
    import torch.distributed as dist

    if not is_distributed():
        return
    for tensor in tensors:
        payload = tensor.to(
            torch.uint8 if tensor.dtype == torch.bool else tensor.dtype
        ).contiguous()
        dist.broadcast(payload, src=0)
        tensor.copy_(payload)


def broadcast_object(value: Value) -> Value:
    """Returns the first process's value, which is pickled: some hundred bytes at most."""
    import torch.distributed as dist

    if not is_distributed():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
