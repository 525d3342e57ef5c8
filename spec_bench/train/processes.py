"""One process, or several of Hugging Face accelerate that share each step's dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn


class Processes:
    """How a step is shared out: here not at all, between this process and none."""

    def __init__(self, device: str) -> None:
        self.rank, self.count, self.device = 0, 1, torch.device(device)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, its gradients averaged over all processes."""
        return module

    def alone(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Within it gradients are summed up here and not exchanged."""
        return nullcontext()

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def wait(self) -> None:
        """Until all are here."""


class Accelerated(Processes):
    """The processes that ``accelerate launch`` or ``torchrun`` started.

    Args:
        device: ``cpu`` keeps accelerate off the GPUs.

    Raises:
        ValueError: accelerate is not installed.
    """

    def __init__(self, device: str) -> None:
        try:
            from accelerate import Accelerator, InitProcessGroupKwargs
        except ImportError:
            raise ValueError(
                "accelerate=true needs the package accelerate: pip install 'spec-bench[train]'"
            ) from None
        # The others wait while the first has the target answer.
        patience = InitProcessGroupKwargs(timeout=timedelta(days=2))
        self._accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=[patience])
        self.rank = self._accelerator.process_index
        self.count = self._accelerator.num_processes
        self.device = self._accelerator.device

    def wrap(self, module: nn.Module) -> nn.Module:
        wrapped: nn.Module = self._accelerator.prepare_model(module)
        return wrapped

    def alone(self, module: nn.Module) -> AbstractContextManager[Any]:
        exchange: AbstractContextManager[Any] = self._accelerator.no_sync(module)
        return exchange

    def total(self, values: Tensor) -> Tensor:
        summed: Tensor = self._accelerator.reduce(values, reduction="sum")
        return summed

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()


def share(indices: Sequence[int], rank: int, count: int, parts: int) -> list[list[int]]:
    """This process's dialogues of a step, in ``parts`` pieces; pieces may be empty."""
    mine = list(indices[rank::count])
    return [mine[part::parts] for part in range(parts)]
