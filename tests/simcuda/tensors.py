"""What lives on the simulated device: tensors, generators, events, and what torch.cuda answers."""

from __future__ import annotations

import ctypes
import time
import types
from pathlib import Path

import torch

DEVICE = torch.device("cuda:0")
MEMORY = 80 * 2**30  # bytes that the device reports
_FREE = 8 * 2**30
_Generator = torch.Generator


def put_up_a_guard():
    """Lets the CPU's device guard, which does nothing, serve CUDA in a build without it."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    registry = (ctypes.c_void_p * 2).in_dll(library, name)
    if not registry[1]:
        registry[1] = registry[0]


class SimTensor(torch.Tensor):
    """A tensor on the simulated device; ``inner`` holds its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=DEVICE, requires_grad=requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func}: a simulated tensor outside its SimCuda mode")

    def __repr__(self, **_):
        return f"sim({self.inner!r})"


class SimGenerator(_Generator):
    """A CPU generator that says it is on the device asked for."""

    def __new__(cls, device="cpu"):
        made = _Generator.__new__(cls, "cpu")
        made._where = DEVICE if torch.device(device).type == "cuda" else torch.device("cpu")
        return made

    def __init__(self, device="cpu"):
        pass

    @property
    def device(self):  # type: ignore[override]
        return self._where


def event_class(sim):
    """``torch.cuda.Event`` on the host's clock, of the mode ``sim``."""

    class SimEvent:
        def __init__(self, *_, **__):
            self.at_s = None
            self._issued = self._sent = 0

        def record(self, *_):
            self.at_s = time.perf_counter()
            self._issued, self._sent = sim.issued, sim.sent

        def synchronize(self):
            sim.waited_for(self._issued, self._sent)

        def query(self):
            return True

        def elapsed_time(self, other):
            if self.at_s is None or other.at_s is None:
                raise RuntimeError("Both events must be recorded before calculating elapsed time.")
            return 1e3 * (other.at_s - self.at_s)

    return SimEvent


def answers(sim):
    """What ``torch.cuda`` answers while the mode ``sim`` is on."""
    major, minor = sim.capability
    properties = types.SimpleNamespace(
        name="Simulated", total_memory=MEMORY, major=major, minor=minor, warp_size=32,
        multi_processor_count=132, L2_cache_size=50 * 2**20,
        uuid="00000000-0000-0000-0000-000000000000",
    )  # fmt: skip
    state = lambda *_: torch.zeros(16, dtype=torch.uint8)  # noqa: E731
    return {
        "is_available": lambda: True, "_lazy_init": lambda: None, "is_initialized": lambda: True,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda *_: None,
        "synchronize": lambda *_: sim.waited("synchronize"),
        "empty_cache": lambda: setattr(sim, "cached", 0),
        "get_device_name": lambda *_: "Simulated",
        "get_device_capability": lambda *_: sim.capability,
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (max(0, _FREE - sim.allocated - sim.cached), MEMORY),
        "memory_allocated": lambda *_: sim.allocated,
        "max_memory_allocated": lambda *_: sim.peak,
        "reset_peak_memory_stats": lambda *_: setattr(sim, "peak", sim.allocated),
        "get_rng_state": state, "set_rng_state": lambda *_: None, "manual_seed": lambda *_: None,
        "get_rng_state_all": lambda: [state()], "set_rng_state_all": lambda *_: None,
        "manual_seed_all": lambda *_: None, "is_bf16_supported": lambda *_, **__: True,
        "Event": event_class(sim),
    }  # fmt: skip
