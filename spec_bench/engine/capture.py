"""How a model's forward pass is captured: the ways of ``engine.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

# ``none`` calls the module. ``static`` runs it over fixed buffers, which a GPU records and replays.
# ``dynamo`` runs its kernels without the modules' Python around them: the same numbers, some
# seconds to trace. ``inductor`` fuses kernels and takes a minute or more.
COMPILE = {"none": None, "static": None, "dynamo": "eager", "inductor": "inductor"}  # backends


def capture(module: PreTrainedModel, how: str) -> Callable[..., Any]:
    """The module's forward pass, captured once for all lengths.

    Args:
        module: the model.
        how: a key of ``COMPILE``.
    """
    backend = COMPILE[how]
    if backend is None:
        return module
    # Target and drafts may share one forward code, and every kind of pass is a graph of its own.
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(module, dynamic=True, backend=backend)
