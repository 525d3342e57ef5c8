"""A simulated CUDA device: finds device mixing, counts copies and waits, replays graphs.

Tensors hold their values in CPU memory but report ``cuda:0``. A dispatch mode makes factories with
``device="cuda"`` and copies to the device return such tensors, refuses what CUDA refuses (operands
on two devices, but for 0-dim CPU operands of pointwise ops and CPU indices), and counts operations,
copies between host and device, and what makes the host wait. ``torch.cuda.CUDAGraph`` records what
is dispatched and plays it again on the memory that it was recorded on. It says nothing about time
or rounding, and has no backward pass (the autograd engine asks a driver), no second device and no
torch.compile.

    with SimCuda() as sim:
        model.to("cuda"); ...
        sim.reset(); step(); print(sim.waits, sim.h2d)
"""

import ctypes
import time
import types
import weakref
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import torch._dynamo  # before anything is replaced
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from spec_bench.engine import plain
from tests.simcuda.graphs import SimPool, SimPools, graph_answers, leaves, mapped, refuse

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
    """A CPU generator that says it is on the device asked for; its offset is 4 a number."""

    def __new__(cls, device="cpu"):
        made = _Generator.__new__(cls, "cpu")
        made._states = [made.get_state()]  # after each number since the seed
        made._where = DEVICE if torch.device(device).type == "cuda" else torch.device("cpu")
        return made

    def __init__(self, device="cpu"):
        pass

    @property
    def device(self):  # type: ignore[override]
        return self._where

    def manual_seed(self, seed):
        self._states = [super().manual_seed(seed).get_state()]
        return self

    def _after(self, count):
        with _disable_current_modes():
            while len(self._states) <= count:
                other = _Generator().set_state(self._states[-1])
                torch.rand(1, dtype=torch.float64, generator=other)
                self._states.append(other.get_state())
        return self._states[count]

    def get_offset(self):
        now = bytes(self.get_state().numpy())
        return 4 * next(at for at in range(10_000) if bytes(self._after(at).numpy()) == now)

    def set_offset(self, offset):
        self.set_state(self._after(offset // 4))


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
    properties = types.SimpleNamespace(
        name="Simulated", total_memory=MEMORY, major=9, minor=0, warp_size=32,
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
        "get_device_capability": lambda *_: (9, 0),
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


# What an operation is on a device: whether it runs there at all, and whether the host waits.

NONE = {
    "empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh", "alias", "lift",
    "_unsafe_view", "_reshape_alias", "set_", "resize_", "_local_scalar_dense", "new_empty_strided",
}  # fmt: skip
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim",
         "unique_consecutive", "is_nonzero", "equal"}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# Operations that take a 0-dim operand of the host although they are not pointwise.
SCALARS_TOO = {"where", "masked_fill", "masked_fill_", "fill_", "scatter", "scatter_", "lerp",
               "index_fill_", "clamp", "copy_"}  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
KERNELS = {  # asked for by name
    "_scaled_dot_product_flash_attention": "flash: ",
    "_scaled_dot_product_efficient_attention": "efficient: ",
    ATTENTION: "",
}


def cost(func, name, args):
    """(whether the device does something, whether the host waits) of a dispatched operation."""
    waits = name in WAITS or (name == "repeat_interleave" and func._overloadname == "Tensor")
    if name in INDEXING:
        waits = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return not (func.is_view or name in NONE), waits


def flash(*given, **named):
    """A CPU's answer for the flash kernel, which takes no mask and no single precision."""
    assert len(given) == 3 and given[0].dtype != torch.float32
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, **named)


def efficient(query, key, value, mask, sums, **named):
    """A CPU's answer for the memory-efficient kernel, whose sums are filled up to 32 tokens."""
    assert sums and (mask is None or mask.shape[1] == query.shape[1])
    output, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, **named
    )
    return output, torch.nn.functional.pad(total, (0, -total.shape[-1] % 32), value=torch.inf)


STAND_INS = dict(zip(KERNELS, (flash, efficient), strict=False))


def attention(args):
    """What attention was asked for: mask, alignment of its rows to 8 elements, shared heads."""
    query, key, mask = args[0], args[1], args[3] if len(args) > 3 else None
    grouped = ", grouped" if query.shape[-3] != key.shape[-3] else ""
    if mask is None:
        return f"no mask, {query.dtype}{grouped}"
    inner = getattr(mask, "inner", mask)
    aligned = all(s % 8 == 0 for s in inner.stride()[:-1]) and inner.stride(-1) == 1
    kind = "aligned" if aligned else "padded in every call"
    return f"mask {str(mask.dtype)[6:]} {kind}{grouped}"


# Composite operations that have CUDA kernels of their own (or ask the device for one).
_LEAVES = {ATTENTION, "rms_norm"}


class _Indexed(TorchFunctionMode):
    """Writes ``cuda`` as ``cuda:0``: without an index torch asks a driver that is not there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def indexed(x):
            if (isinstance(x, torch.device) and x.type == "cuda") or (
                isinstance(x, str) and x == "cuda"
            ):
                return DEVICE
            return x

        if func is torch.Tensor.cuda:
            return args[0].to(DEVICE)
        if func is torch.Tensor.tolist and isinstance(args[0], SimTensor):
            return args[0].cpu().tolist()
        named = {key: indexed(value) for key, value in (kwargs or {}).items()}
        if named.pop("pin_memory", False):  # a driver's to do
            made = func(*map(indexed, args), **named)
            made.pinned = True
            return made
        return func(*map(indexed, args), **named)


class SimCuda(TorchDispatchMode):
    """The mode; entering it also replaces what ``torch.cuda`` answers."""

    current = None

    def __init__(self):
        super().__init__()
        self.allocated = self.peak = 0
        self.cached = 0  # bytes that were given back and are kept for what comes next
        self._storages = {}
        self.tape = None  # of the graph that is recorded now
        self.pools, self.pool = SimPools(), SimPool()  # all, and that of this graph
        self.issued = 0  # operations ever, a replay among them
        self.sent = 0  # copies home ever that the host did not wait for
        self.arriving = []  # of these, those on their way
        self.reset()

    def reset(self):
        self.ops = Counter()  # that were called, replays left out
        self.syncs = Counter()  # by what waited
        self.h2d = 0  # copies to the device
        self.unwaited = 0  # of them, out of pinned memory; for all others the host waits
        self.behind = 0  # waits for what the device had done before its latest work
        self.late_downloads = 0  # copies home that the host did not wait for
        self.replays = 0  # of graphs
        self.attention = Counter()  # what attention was asked for

    # -- entering and leaving ------------------------------------------------------------------
    def __enter__(self):
        if SimCuda.current is None:
            SimCuda.current = self
            put_up_a_guard()
            self._stack = ExitStack()
            compatible = torch._has_compatible_shallow_copy_type
            everywhere = {
                "Generator": SimGenerator,
                # A parameter must become a simulated one, not take over its metadata.
                "_has_compatible_shallow_copy_type": lambda a, b: (
                    not (isinstance(a, SimTensor) or isinstance(b, SimTensor)) and compatible(a, b)
                ),
            }

            def is_loaded(weight):
                return not weight.is_meta

            for owner, replaced in (
                (torch.cuda, answers(self) | graph_answers(self)),
                (torch, everywhere),
                (plain, {"is_plain_weight": is_loaded}),
            ):
                for name, value in replaced.items():
                    self._stack.enter_context(mock.patch.object(owner, name, value, create=True))
            self._stack.enter_context(_Indexed())
            self._lift = torch._C._only_lift_cpu_tensors()
            torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error):
        result = super().__exit__(*error)
        if SimCuda.current is self:
            SimCuda.current = None
            torch._C._set_only_lift_cpu_tensors(self._lift)
            self._stack.close()
        return result

    # -- bookkeeping ---------------------------------------------------------------------------
    def waited(self, what):
        """Notes that the host waited for the device."""
        refuse(self, what)
        self.syncs[what] += 1

    def waited_for(self, issued, sent):
        """Notes that the host waited for an event behind so many operations and copies home."""
        if issued < self.issued:  # the device has more to do
            refuse(self, "event")
            self.behind += 1
        else:
            self.waited("Event.synchronize")
        arrived = len(self.arriving) - max(self.sent - sent, 0)
        for home, values in self.arriving[:arrived]:
            home.copy_(values)
        del self.arriving[:arrived]

    def _uploaded(self, waits=True):
        refuse(self, "copy from the host")
        self.h2d += 1
        self.unwaited += not waits

    @property
    def waits(self):
        """How often the host stood still until the device had nothing left to do."""
        return sum(self.syncs.values()) + self.h2d - self.unwaited

    def wrap(self, inner):
        """A CPU tensor as a simulated one, its storage counted."""
        # A view of a tensor from outside inference mode is none of inference mode's.
        with torch.inference_mode(inner.is_inference()):
            made = SimTensor(inner)
        storage = inner.untyped_storage()
        key = storage._cdata
        held = self._storages.setdefault(key, [0, storage.nbytes()])
        if not held[0]:
            self.allocated += held[1]
            self.cached = max(0, self.cached - held[1])
            self.peak = max(self.peak, self.allocated)
        held[0] += 1
        weakref.finalize(made, self._drop, key).atexit = False
        return made

    def _drop(self, key):
        held = self._storages[key]
        held[0] -= 1
        if not held[0]:
            self.allocated -= held[1]
            self.cached += held[1]
            del self._storages[key]
            for pool in self.pools.memory.values():
                pool.freed(key)

    # -- dispatch ------------------------------------------------------------------------------
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        flat = leaves((args, kwargs))
        sims = [x for x in flat if isinstance(x, SimTensor)]
        asked = next((x for x in flat if isinstance(x, torch.device)), None)
        to_device = asked is not None and asked.type == "cuda"
        if not sims and not to_device:
            return func(*args, **kwargs)
        if (
            func._can_decompose()
            and torch._C._dispatch_has_kernel_for_dispatch_key(
                func.name(), "CompositeImplicitAutograd"
            )
            and name not in _LEAVES
            and (sims or name not in ("rand", "randn"))
        ):
            TorchDispatchMode.__enter__(self)
            try:
                made = func.decompose(*args, **kwargs)
            finally:
                TorchDispatchMode.__exit__(self, None, None, None)
            if made is not NotImplemented:
                return made
        if asked is not None:
            on_cpu = lambda x: torch.device("cpu") if isinstance(x, torch.device) else x  # noqa: E731
            args, kwargs = mapped(on_cpu, (args, kwargs))
        self._check(func, name, flat, sims)
        back = {id(x.inner): x for x in sims}
        plain = lambda x: x.inner if isinstance(x, SimTensor) else x  # noqa: E731
        own_args, own_kwargs = mapped(plain, args), mapped(plain, kwargs)
        result = STAND_INS.get(name, func)(*own_args, **own_kwargs)
        if self.tape is not None:
            result = self.pool.moved(result, (own_args, own_kwargs))
            self.tape.append((func, own_args, own_kwargs, result))
        home = asked is not None and asked.type != "cuda"
        if (name == "_to_copy" and asked is not None) or name == "copy_":
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,)))
            pinned = any(getattr(each, "pinned", False) for each in args[:2])
            asynchronous = not blocking and pinned
            return self._copied(func, name, args, result, back, home, bool(sims), not asynchronous)
        self._count(func, name, args)
        if (home and not name.startswith("new_")) or name == "_local_scalar_dense":
            return result
        return mapped(
            lambda x: back.get(id(x)) if id(x) in back
            else self.wrap(x) if isinstance(x, torch.Tensor) else x,
            result,
        )  # fmt: skip

    def _check(self, func, name, flat, sims):
        """Refuses operands of the host among those of the device."""
        if not sims or name in ("_to_copy", "copy_"):
            return
        pointwise = torch.Tag.pointwise in func.tags or name in SCALARS_TOO
        for x in flat:
            if not isinstance(x, torch.Tensor) or isinstance(x, SimTensor):
                continue
            if name in INDEXING and (x.dim() == 0 or isinstance(flat[0], SimTensor)):
                if x.dim():
                    self._uploaded()
                continue
            if pointwise and x.dim() == 0:
                continue
            text = f"{name}: expected all tensors on one device, found cuda:0 and cpu"
            raise RuntimeError(f"{text} {tuple(x.shape)}")

    def _copied(
        self, func, name, args, result, back, home, sim,
        waits):  # fmt: skip
        """A copy: within the device, up to it, or home to the host, which waits."""
        into = name == "copy_"
        if into:
            up = isinstance(args[0], SimTensor) and not isinstance(args[1], SimTensor)
            up = up and bool(args[1].dim())
            home = isinstance(args[1], SimTensor) and not isinstance(args[0], SimTensor)
        else:
            up = not home and not sim
        if home and into and not waits:
            refuse(self, "copy to host")
            self.late_downloads += 1
            self.sent += 1
            self.arriving.append((args[0], result.clone()))
            result.fill_(float("nan"))  # until the host has waited for it
        elif home:
            self.waited("copy to host")
        elif up:
            self._uploaded(waits)
        else:
            self._count(func, name, args)
        if into:
            return back.get(id(result), result)
        return result if home else self.wrap(result)

    def _count(self, func, name, args):
        runs, waits = cost(func, name, args)
        if name in KERNELS:
            self.attention[f"{KERNELS[name]}{attention(args)}"] += 1
        if waits:
            self.waited(name)
        self.ops[name] += runs
        self.issued += runs


class Counts(NamedTuple):
    uploads: int  # copies to the device
    downloads: int  # copies to the host
    waits: int  # how often the host stood still until the device had nothing left to do
    # How often it waited for an earlier iteration while the device was at a later one.
    behind: int
    replays: int  # of recordings


def counted(sim, built, requests):
    """Counts an iteration of all rows, the third, when every constant is on the device.

    Constants belong to shapes, and beams and guesses come in many: so all is decoded once before.
    No request ends within three iterations.
    """
    built.generate(requests, seed=0)
    with torch.inference_mode():
        active = built.prefill_requests(requests, seed=0)
        for _ in range(3):
            sim.reset()
            built.step(active)
            assert all(row.finish is None for row in active)
    downloads = sim.syncs["copy to host"] + sim.late_downloads
    return Counts(sim.h2d, downloads, sim.waits, sim.behind, sim.replays)
