"""Passes over fixed buffers: the same work at the same addresses, so that a GPU can replay it.

A pass is made per kind: rows, tokens, slots read, what comes out. What varies between two passes of
a kind (tokens, positions, mask and the slots to write) is data on the device that is filled in
place; no number comes from the host. On CUDA the pass is recorded as a graph and replayed in
one launch; elsewhere its function is called on the same buffers, so that everything but the
recording runs, and is tested, on a CPU.

A recording that misses something answers for the input it was made with. So a pass is made over
fillers, and its first two real answers are compared with the module's own; if they differ, or the
recording fails, that kind of pass stays with the module, and a line says so.

Letters: R rows, T tokens of one pass, S cache slots read, V tokens of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from spec_bench.engine.agreement import disagreement
from spec_bench.engine.cache import SlotCache
from spec_bench.engine.pass_buffers import Buffers, Kind
from spec_bench.settings.fields import one_line

log = logging.getLogger(__name__)
MOST_TOKENS = 256  # of a row; longer passes are a prompt's, which keep a GPU busy by themselves
_LEAST_SLOTS = 64
CHECKS = 2  # first answers of a pass that are compared with the module's
_WARM_UPS = 2  # before a recording: libraries set themselves up in their first calls
Outputs = tuple[Tensor, ...]


class Recorder:
    """Where a GPU's passes are recorded: one stream, and a pool of memory that they share.

    torch gives a pool up for good once its last graph is gone (pytorch#198794), as when a cache
    grows; so a graph of one kernel stays in it. What fails while it is recorded leaves torch on the
    recording's stream and its pool in use: the stream is put back, and the pool replaced.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._renew()

    def _renew(self) -> None:
        """Takes a new pool and keeps a graph in it."""
        self._pool = torch.cuda.graph_pool_handle()
        one = torch.zeros(1, device=self._device)
        self._kept = one, self._record(lambda: (one + 1,))

    def record(self, function: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        """The function as a graph, with what its replays overwrite."""
        try:
            return self._record(function)
        except Exception:
            self._renew()
            raise

    def _record(self, function: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        now = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(now):
            self._stream.wait_stream(now)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    function()
            now.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                outputs = function()
        return graph, outputs


class StaticPass:
    """One kind of pass over its own buffers.

    Args:
        buffers: its input, full of fillers.
        function: runs the model over them; the outputs of every call mean the same.
        recorder: where it is recorded, on a GPU.

    Attributes:
        unchecked: how many more answers to compare with the module's.
    """

    def __init__(
        self,
        buffers: Buffers,
        function: Callable[[Buffers], Outputs],
        recorder: Recorder | None = None,
    ) -> None:
        self.buffers, self._function = buffers, function
        self.unchecked = CHECKS
        self._replay: Callable[[], None] = self._call
        if recorder is not None:
            graph, self.outputs = recorder.record(lambda: function(buffers))
            self._replay = graph.replay
        else:
            self.outputs = function(buffers)

    def _call(self) -> None:
        """What a replay does, without a graph: overwrites the earlier outputs."""
        for kept, new in zip(self.outputs, self._function(self.buffers), strict=True):
            kept.copy_(new)

    def run(self, *given: Tensor) -> Outputs:
        """Fills the buffers and replays; the outputs hold until the next run."""
        self.buffers.fill(*given)
        self._replay()
        return self.outputs


@dataclass
class PassCounts:
    """How a model's passes ran, prompts' excluded.

    Attributes:
        static: over fixed buffers.
        eager: by the module itself.
        captures: static passes that were made.
    """

    static: int = 0
    eager: int = 0
    captures: int = 0


class StaticPasses:
    """The static passes of one model, made and checked when first needed.

    Args:
        run: runs the module over buffers and a cache that has been told of them.
        device: of the buffers.
    """

    def __init__(
        self, run: Callable[[SlotCache, Kind, Buffers], Outputs], device: torch.device
    ) -> None:
        self._run, self._device = run, device
        self._recorder: Recorder | None = None
        self.counts = PassCounts()
        self.refusals: list[str] = []  # why passes stayed with the module

    def kind(
        self,
        cache: SlotCache,
        tokens: Tensor,
        reach: int,
        logits_to_keep: int,
        hidden: tuple[int, ...],
    ) -> Kind:
        """The kind of pass that serves tokens [R, T] reading ``reach`` slots."""
        rows, count = tokens.shape
        slots = min(rounded_slots(reach), cache.slots)
        # What a draft has not seen yet is one or two tokens, varying by iteration.
        least = 2 if logits_to_keep else 1
        return Kind(rows, rounded_tokens(max(count, least)), slots, logits_to_keep, hidden)

    def forward(
        self,
        cache: SlotCache,
        kind: Kind,
        given: tuple[Tensor, Tensor, Tensor, Tensor],
        eager: Callable[[], Outputs],
    ) -> Outputs:
        """Runs a pass of that kind, by the module where it must be.

        Args:
            cache: where it writes.
            kind: from ``kind``.
            given: tokens [R, T], positions [R, T], slots [R, T], visible [R, T, S], without
                fillers.
            eager: the same pass by the module itself.

        Returns:
            Logits [R, T', V] and, if asked for, hidden states [R, T, D], the caller's to keep.
        """
        passes: dict[Kind, StaticPass | None] = cache.passes
        if kind not in passes:
            passes[kind] = self._made(cache, kind)
        ready = passes[kind]
        if ready is not None and ready.unchecked == 0:
            self.counts.static += 1
            return tuple(part.clone() for part in _last(ready.run(*given), given[0].shape[1]))
        self.counts.eager += 1
        if ready is None:
            return eager()
        # The module's pass comes second: what it writes is right, whatever the other one wrote.
        found = [part.clone() for part in _last(ready.run(*given), given[0].shape[1])]
        expected = eager()
        ready.unchecked -= 1
        reasons = [disagreement(one, own) for one, own in zip(found, expected, strict=True)]
        if reason := next(filter(None, reasons), ""):
            self._refuse(kind, reason)
            passes[kind] = None
        return expected

    def _made(self, cache: SlotCache, kind: Kind) -> StaticPass | None:
        """A new static pass; None if it could not be made."""
        buffers = Buffers.standing_in(kind, cache.slots, self._device)
        self.counts.captures += 1
        own = ref(cache)  # which holds the pass

        def function(filled: Buffers) -> Outputs:
            written = own()
            assert written is not None
            return self._run(written, kind, filled)

        try:
            if self._recorder is None and self._device.type == "cuda":
                self._recorder = Recorder(self._device)
            return StaticPass(buffers, function, self._recorder)
        except Exception as error:  # recording fails in many ways; none may end a run
            self._refuse(kind, one_line(error))
            return None

    def _refuse(self, kind: Kind, reason: str) -> None:
        """Notes why a kind of pass stays with the module; the first time a line says so."""
        if not self.refusals:
            log.warning(
                "a static pass of %d x %d tokens over %d slots stays eager: %s",
                *kind[:3],
                reason[:300],
            )
        self.refusals.append(reason)

    def prepare(self, cache: SlotCache, batch: int, run: Callable[[Kind, int], None]) -> None:
        """Makes ahead of time what growing sequences and emptying batches will need.

        Args:
            cache: whose passes; the kinds among them are known, in the widest batch at least.
            batch: most sequences that decode together, of one row each or of several.
            run: makes one pass of a kind over a given number of slots.
        """
        widest: dict[tuple[int, int, tuple[int, ...]], int] = {}
        for kind in cache.passes:
            # Rows with unequal numbers of pending tokens keep all logits.
            for keep in {kind.logits_to_keep, 0} if batch > 1 else {kind.logits_to_keep}:
                what = kind.tokens, keep, kind.needs_hidden
                widest[what] = max(kind.rows, widest.get(what, 0))
        for what, most in sorted(widest.items()):
            rows = [most * left // batch for left in range(batch, 0, -1) if most % batch == 0]
            for count in rows or range(most, 0, -1):
                for slots in slot_steps(cache.slots):
                    kind = Kind(count, what[0], slots, *what[1:])
                    if kind.tokens < slots and kind not in cache.passes:
                        for reach in range(slots - CHECKS + 1, slots + 1):
                            run(kind, reach)


def _last(outputs: Outputs, count: int) -> Outputs:
    """The outputs of the last ``count`` tokens, of which there may be fewer."""
    return tuple(part[:, -count:] for part in outputs)


def rounded_tokens(count: int) -> int:
    """T of the pass that serves ``count`` tokens: few kinds, and little waste."""
    if count <= 8:
        return 1 << (count - 1).bit_length()
    return -(-count // 8) * 8


def rounded_slots(reach: int) -> int:
    """S of the pass that serves ``reach`` slots: four steps between powers of two."""
    step = max(_LEAST_SLOTS, 1 << (reach - 1).bit_length()) // 8
    return max(_LEAST_SLOTS, -(-reach // step) * step)


def slot_steps(most: int) -> list[int]:
    """All S of passes over a cache of ``most`` slots."""
    steps = [min(_LEAST_SLOTS, most)]
    while steps[-1] < most:
        steps.append(min(rounded_slots(steps[-1] + 1), most))
    return steps
