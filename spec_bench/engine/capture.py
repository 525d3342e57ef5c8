"""How a model's forward pass is captured: the choices of ``engine.compile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import FunctionType
from typing import Any

import torch
from transformers import PreTrainedModel

# ``none`` calls the module. ``static`` runs it over fixed buffers, which a GPU records and replays.
# ``dynamo`` runs its kernels without the modules' Python around them: the same numbers, some
# seconds to trace. ``inductor`` fuses kernels and takes a minute or more.
# ``static_inductor`` fuses those of passes over fixed buffers.
COMPILE = {  # backends
    "none": None,
    "static": None,
    "static_inductor": "inductor",
    "dynamo": "eager",
    "inductor": "inductor",
}
OVER_BUFFERS = ("static", "static_inductor")
_FILTERS = hasattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe")  # since torch 2.8
# Elements that a thread is given at least: an iteration's fused kernels have thousands, and to wake
# a second thread takes longer than those (inductor's own: 512).
_CHUNK = 1 << 14
_numbers = count()


def capture(module: PreTrainedModel, how: str) -> Callable[..., Any]:
    """The module's forward pass, in eval mode, captured once for all lengths; ``how`` is of
    ``COMPILE``.

    What a module holds does not change while it decodes. Checking its thousands of parts and
    weights before every pass costs up to a tenth of one, so that is left out. To tell modules of
    one class apart, each gets code of its own, by which captured passes are kept.
    """
    backend = COMPILE[how]
    if backend is None:
        return module
    captured_module = module

    def forward(**given: Any) -> Any:
        return captured_module(**given)

    code = forward.__code__.replace(co_name=f"forward_{next(_numbers)}")
    renamed = FunctionType(code, globals(), code.co_name, None, forward.__closure__)
    # Target and drafts may share code further in, and every kind of pass is a graph of its own.
    torch._dynamo.config.recompile_limit = 64
    options: dict[str, Any] = {"guard_filter_fn": _kept} if _FILTERS else {}
    if backend == "inductor":
        options["cpp.min_chunk_size"] = _CHUNK
    return torch.compile(renamed, dynamic=True, backend=backend, options=options or None)


def _kept(guards: Sequence[Any]) -> list[bool]:
    """Which checks are made before a pass: not those of the module's own contents."""
    return [not each.name.startswith("captured_module.") for each in guards]
