"""The dispatch mode: what runs where, what waits, and whose line asked for it."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from contextlib import ExitStack
from unittest import mock

import torch
import torch._dynamo  # before anything is replaced
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from tests.simcuda import costs
from tests.simcuda.graphs import SimPools, graph_answers, refuse
from tests.simcuda.pools import SimPool
from tests.simcuda.tensors import DEVICE, SimGenerator, SimTensor, answers, put_up_a_guard

# Composite operations that have CUDA kernels of their own (or ask the device for one).
_LEAVES = {costs.ATTENTION}


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
    """The mode; entering it also replaces what ``torch.cuda`` answers.

    Args:
        watch: part of the file names that events are ascribed to; empty: lines are not looked for,
            which is several times faster.
        capability: compute capability that is reported.
        strict: whether mixing devices raises; otherwise it is only listed in ``errors``.
    """

    current: SimCuda | None = None

    def __init__(self, watch="", capability=(9, 0), strict=True):
        super().__init__()
        self.watch, self.capability, self.strict = watch, capability, strict
        self.allocated = self.peak = 0
        self.cached = 0  # bytes that were given back and are kept for what comes next
        self._storages = {}
        self.errors = Counter()
        self.tape = None  # of the graph that is recorded now
        self.pools, self.pool = SimPools(), SimPool()  # all, and that of this graph
        self.issued = 0  # operations ever, a replay among them
        self.sent = 0  # copies home ever that the host did not wait for
        self.arriving = []  # of these, those on their way
        self.reset()

    def reset(self):
        """Forgets all counts."""
        self.ops = Counter()  # that were called, replays left out
        self.syncs = Counter()  # (what, line)
        self.h2d = Counter()  # by line
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
            for owner, replaced in (
                (torch.cuda, answers(self) | graph_answers(self)),
                (torch, everywhere),
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
    def _line(self):
        if not self.watch:
            return "?"
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if self.watch in name and "simcuda" not in name:
                return f"{name[name.rfind(self.watch) :]}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return "?"

    def waited(self, what):
        """Notes that the host waited for the device."""
        refuse(self, what)
        self.syncs[what, self._line()] += 1

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
        self.h2d[self._line()] += 1
        self.unwaited += not waits

    @property
    def waits(self):
        """How often the host stood still until the device had nothing left to do."""
        return sum(self.syncs.values()) + sum(self.h2d.values()) - self.unwaited

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
        flat, _ = tree_flatten((args, kwargs))
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
            args, kwargs = tree_map(on_cpu, (args, kwargs))
        self._check(func, name, flat, sims)
        back = {id(x.inner): x for x in sims}
        plain = lambda x: x.inner if isinstance(x, SimTensor) else x  # noqa: E731
        own_args, own_kwargs = tree_map(plain, args), tree_map(plain, kwargs)
        result = costs.STAND_INS.get(name, func)(*own_args, **own_kwargs)
        if self.tape is not None:
            result = self.pool.moved(result, (own_args, own_kwargs))
            self.tape.append((func, own_args, own_kwargs, result))
        home = asked is not None and asked.type != "cuda"
        if (name == "_to_copy" and asked is not None) or name == "copy_":
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,)))
            asynchronous = not blocking and getattr(args[0], "pinned", False)
            return self._copied(func, name, args, result, back, home, bool(sims), not asynchronous)
        self._count(func, name, args)
        if (home and not name.startswith("new_")) or name == "_local_scalar_dense":
            return result
        return tree_map(
            lambda x: back.get(id(x)) if id(x) in back
            else self.wrap(x) if isinstance(x, torch.Tensor) else x,
            result,
        )  # fmt: skip

    def _check(self, func, name, flat, sims):
        """Refuses, or lists, operands of the host among those of the device."""
        if not sims or name in ("_to_copy", "copy_"):
            return
        pointwise = torch.Tag.pointwise in func.tags or name in costs.SCALARS_TOO
        for x in flat:
            if not isinstance(x, torch.Tensor) or isinstance(x, SimTensor):
                continue
            if name in costs.INDEXING and (x.dim() == 0 or isinstance(flat[0], SimTensor)):
                if x.dim():
                    self._uploaded()
                continue
            if pointwise and x.dim() == 0:
                continue
            text = (
                f"{name}: expected all tensors on one device, found cuda:0 and cpu {tuple(x.shape)}"
                f" at {self._line()}"
            )
            self.errors[text] += 1
            if self.strict:
                raise RuntimeError(text)

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
        runs, waits = costs.cost(func, name, args)
        if name in costs.KERNELS:
            self.attention[f"{costs.KERNELS[name]}{costs.attention(args)}"] += 1
        if waits:
            self.waited(name)
        self.ops[name] += runs
        self.issued += runs
