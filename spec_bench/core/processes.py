"""The processes over which a model is split: the rank of this process, and communication.

``torchrun`` starts the processes and sets the environment; transformers connects them when it loads
a split model. All decode the same prompts with the same draws. Still, a draft's logits may differ
in a bit if a library splits a sum differently on each GPU. So results that depend on logits and
decide what is decoded next are copied from the first process to all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")


def process_rank() -> int:
    """Returns this process's rank; 0 if it is the only process. Only process 0 writes files."""
    return int(os.environ.get("RANK", "0"))


def count_torchrun_processes() -> int:
    """Returns the number of processes; 0 if ``torchrun`` started none."""
    return int(os.environ.get("WORLD_SIZE", "0"))


def count_local_torchrun_processes() -> int:
    """Returns the number of ``torchrun``'s processes on this machine, each with its own GPU."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or count_torchrun_processes()


def is_distributed() -> bool:
    """Returns whether several processes are connected to decode together."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def wait_for_processes() -> None:
    """Waits for every process; returns immediately if there is only one process."""
    import torch.distributed as dist

    if is_distributed():
        dist.barrier()


def copy_from_first_process(*tensors: Tensor) -> None:
    """Copies the first process's values to every process, in place; shapes must be equal."""
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
    """Returns the first process's value, pickled in between; for values of some hundred bytes."""
    import torch.distributed as dist

    if not is_distributed():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
