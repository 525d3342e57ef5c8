"""Calls of a model's modules without the checks that ``torch.nn.Module`` makes at each of them.

A forward pass of a small model calls hundreds of modules. Each call looks for seven kinds of hook
and for a tracer before it reaches the module's own code; each part or weight is looked up in three
tables after Python has not found its name. On a CPU that is some 8% of a pass. Here only a module's
own hooks are looked for, and its parts and weights are where Python looks first. Numbers,
parameters and names stay as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn


def call_directly(model: nn.Module) -> None:
    """Makes every module of a model be called directly, if its class adds nothing to a call.

    Not for a model that is traced, trained, pickled or moved: backward hooks and process-wide hooks
    are not looked for. Buffers stay where they are, since rotary embeddings make theirs anew; so do
    all weights if a module has been given a ``forward`` of its own: accelerate and tensor
    parallelism exchange weights around it.
    """
    moved = any("forward" in vars(module) for module in model.modules())
    for module in model.modules():
        vars(module).update(module._modules)
        if not moved:
            vars(module).update(module._parameters)
        kind: Any = type(module)
        if kind.__call__ is nn.Module.__call__ and not isinstance(module, nn.ModuleList):
            module.__class__ = _direct(kind)


@cache
def _direct(kind: Any) -> Any:
    """The same class with a shorter way to ``forward``."""

    def call(self: Any, *args: Any, **given: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks:
            return kind.__call__(self, *args, **given)
        return self.forward(*args, **given)

    same = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**same, "__doc__": kind.__doc__})
