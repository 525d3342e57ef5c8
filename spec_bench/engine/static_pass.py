"""Passes over fixed buffers, which a GPU records: how they are made, checked and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import cached_property
from operator import sub
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from spec_bench.core.transfer import holding_constants
from spec_bench.engine.cache import SlotCache
from spec_bench.settings.fields import one_line

# Whether two computations of the same logits agree up to rounding.

# How far apart logits may be: |difference| over |deviation from their mean|, over the vocabulary.
# A wrong mask moves them by a tenth and more.
TOLERANCE = {
    torch.float64: 1e-5,  # some modules compute attention or norms in float32 whatever the dtype
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}
NEAR_TIE_GAP = 1e-4  # of logits in float32 and finer


def near_tie_gap(dtype: torch.dtype, logit: float) -> float:
    """The largest gap between two logits, the larger one of this size, whose order rounding alone
    can reverse. In bfloat16 neighbours between 16 and 32 lie 0.125 apart, and passes of two shapes
    may round one logit each way.
    """
    return max(NEAR_TIE_GAP, 2 * torch.finfo(dtype).eps * abs(logit))


def apart(one: Tensor, other: Tensor) -> Tensor:
    """Returns how far rows of logits [..., V] lie apart, in units of the second's spread: [...]."""
    lowest = torch.finfo(one.dtype).min
    one, other = (rows.nan_to_num(neginf=lowest).double() for rows in (one, other))
    spread = (other - other.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return (one - other).norm(dim=-1) / spread.clamp(min=1e-30)


def disagreement(one: Tensor, other: Tensor) -> str:
    """Returns how logits [..., V] differ from others by more than rounding; "" if they do not."""
    error, allowed = float(apart(one, other).max()), TOLERANCE[other.dtype]
    if not error <= allowed:
        return f"logits differ by {error:.2g} of their spread (allowed: {allowed:.2g})"
    mine, theirs = one.argmax(dim=-1, keepdim=True), other.argmax(dim=-1, keepdim=True)
    best, chosen = other.gather(-1, theirs), other.gather(-1, mine)
    step = 2 * torch.finfo(other.dtype).eps * best.abs()
    if bool((best - chosen > step.clamp(min=NEAR_TIE_GAP)).any()):
        return "greedy tokens differ"
    return ""


# Recording of a GPU's work: once as a graph, then replayed in one launch.

Outputs = tuple[Tensor, ...]
_WARM_UPS = 2  # before a recording: libraries set themselves up in their first calls


class Recorder:
    """Where a GPU's passes are recorded: one stream, and a pool of memory that they share.

    torch gives a pool up for good once its last graph is gone (pytorch#198794), as when a cache
    grows; so a graph of one kernel stays in it. What fails while it is recorded leaves torch on the
    recording's stream and its pool in use: the stream is put back, and the pool replaced.
    Constants that a graph reads stay too, whatever else comes to be constant.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.constants: list[Tensor] = []
        self._stream = torch.cuda.Stream(device)
        self._renew()

    def _renew(self) -> None:
        """Takes a new pool and keeps a graph in it."""
        self._pool = torch.cuda.graph_pool_handle()
        one = torch.zeros(1, device=self._device)
        self._kept = one, self._record(lambda: (one + 1,))

    def record(self, function: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        """Returns the function as a graph, with what its replays overwrite."""
        try:
            return self._record(function)
        except Exception:
            self._renew()
            raise

    def _record(self, function: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        now = torch.cuda.current_stream(self._device)
        where: dict[str, Any] = {"pool": self._pool, "stream": self._stream}
        where["capture_error_mode"] = "thread_local"
        with torch.cuda.device(self._device), torch.cuda.stream(now):
            self._stream.wait_stream(now)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    function()
            now.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, **where), holding_constants(self.constants):
                outputs = function()
        return graph, outputs


@dataclass
class PassCounts:
    """How a model's passes ran, prompts' excluded."""

    static: int = 0  # over fixed buffers
    eager: int = 0  # by the module itself
    captures: int = 0  # static passes that were made
    refused: int = 0  # kinds of pass that stayed with the module for good

    def __sub__(self, before: PassCounts) -> PassCounts:
        return PassCounts(*map(sub, astuple(self), astuple(before)))

    @property
    def share(self) -> str:
        """How passes ran: static, eager, or static with its share of all."""
        if not self.static:
            return "eager"
        if not self.eager:
            return "static"
        return f"static {self.static / (self.static + self.eager):.1%}"


def passes_of(models: Iterable[Any]) -> PassCounts:
    """Returns the counts of several models; those that run in one way only count none."""
    held = {getattr(model, "static", None) for model in models}
    counts = [astuple(passes.counts) for passes in held if passes is not None]
    return PassCounts(*map(sum, zip(*counts, strict=True)))


# Passes over fixed buffers: the same work at the same addresses, so that a GPU can replay it.
#
# A pass is made per kind, all of whose numbers are rounded up, so that a job needs few kinds. What
# varies between two passes of a kind (tokens, positions, mask and the slots to write) is data on
# the device that is filled in place; no number comes from the host. On CUDA the pass is recorded
# and replayed in one launch; elsewhere its function is called on the same buffers, so that
# everything but the recording runs, and is tested, on a CPU.
#
# A recording that misses something answers for the input it was made with. So a pass is made over
# fillers, and its first two real answers are compared with the module's own; if they differ, or the
# recording fails, that kind of pass stays with the module, and a line says so.
#
# Letters: R rows, T tokens of one pass, S cache slots read, V tokens of the vocabulary.

log = logging.getLogger(__name__)
# Models whose passes never wait for the device; of others a recording might fail, and a failed one
# costs more than it could gain.
RECORDED = ("gpt_neox", "llama", "mistral", "opt", "qwen2", "qwen3")
_WAITING_ROPE = ("dynamic", "longrope")  # they look at the longest position
MOST_ROWS = 16
MOST_TOKENS = 512  # of all rows; larger passes keep a GPU busy by themselves
CHECKS = 2  # first answers of a pass that are compared with the module's


class Kind(NamedTuple):
    """What tells one static pass from another."""

    rows: int  # R, fillers included
    tokens: int  # T, fillers included
    slots: int  # S
    needs_hidden: tuple[int, ...]  # which hidden states come out


@dataclass
class Buffers:
    """A pass's input."""

    tokens: Tensor  # [R, T]
    positions: Tensor  # [R, T]
    slots: Tensor  # [R, T] where each token's keys and values go
    visible: Tensor  # [R, T, S] bool
    rows: Tensor  # [R, 1] each row's index
    scratch: int  # the slot where fillers write

    @classmethod
    def standing_in(cls, kind: Kind, scratch: int, device: torch.device) -> Buffers:
        """Returns buffers of fillers, which write to the slot ``scratch`` and see every slot."""
        shape = (kind.rows, kind.tokens)
        tokens, positions, slots = (torch.full(shape, n, device=device) for n in (0, 0, scratch))
        visible = torch.ones((*shape, kind.slots), dtype=torch.bool, device=device)
        rows = torch.arange(kind.rows, device=device).unsqueeze(1)
        return cls(tokens, positions, slots, visible, rows, scratch)

    def fill(self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor) -> None:
        """Puts a pass's input first along R and last along T; fillers then see nothing."""
        rows, count = tokens.shape
        # A larger input before this one has left its slots where fillers are now.
        self.slots.fill_(self.scratch)
        self.tokens[:rows, -count:].copy_(tokens)
        self.positions[:rows, -count:].copy_(positions)
        self.slots[:rows, -count:].copy_(slots)
        self.visible.zero_()
        self.visible[:rows, -count:, : visible.shape[2]].copy_(visible)


def rounded_slots(reach: int) -> int:
    """S of the pass that serves ``reach`` slots: 64, 256, and from 1,024 on each power of two."""
    few = (slots for slots in (64, 256, 1024) if reach <= slots)
    return next(few, 1 << (reach - 1).bit_length())


def slot_steps(least: int, most: int) -> list[int]:
    """Returns all S of passes that read ``least`` to ``most`` slots, of a cache of ``most``."""
    steps = [min(rounded_slots(least), most)]
    while steps[-1] < most:
        steps.append(min(rounded_slots(steps[-1] + 1), most))
    return steps


class StaticPass:
    """One kind of pass over its own buffers, full of fillers at first; a GPU's is recorded. The
    outputs of every call of the function mean the same.
    """

    def __init__(
        self,
        buffers: Buffers,
        function: Callable[[Buffers], Outputs],
        recorder: Recorder | None = None,
    ) -> None:
        self.buffers, self._function = buffers, function
        self.unchecked = CHECKS  # how many more answers to compare with the module's
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


def why_not_recorded(config: Any) -> str:
    """Says why a GPU's passes of a model, by its text config, are not recorded; "" where they
    are.
    """
    if config.model_type not in RECORDED:
        known = ", ".join(RECORDED)
        return f"model type {config.model_type!r} is not known to record; known: {known}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    waits = rope in _WAITING_ROPE
    return f"rotary embeddings of type {rope!r} wait for the device" if waits else ""


class StaticPasses:
    """The static passes of one model, made and checked when first needed. Each of the ways runs the
    module over buffers and a cache set up for them; the next is taken once one fails.
    """

    def __init__(
        self, ways: Iterable[Callable[[SlotCache, Kind, Buffers], Outputs]], device: torch.device
    ) -> None:
        self._ways, self._device = list(ways), device
        self.counts = PassCounts()
        self.refusals: list[str] = []  # why passes stayed with the module

    @cached_property
    def recorder(self) -> Recorder | None:
        """Where a GPU's work is recorded; None elsewhere."""
        return Recorder(self._device) if self._device.type == "cuda" else None

    def kind(
        self, cache: SlotCache, rows: int, count: int, reach: int, hidden: tuple[int, ...]
    ) -> Kind | None:
        """Returns the kind of pass that serves ``count`` tokens of each of so many rows over
        ``reach`` slots; None where the pass is left to the module: it is large.
        """
        kind = Kind(
            min(1 << -(-(rows - 1).bit_length() // 2) * 2, cache.rows),  # 1, 4, 16, 64, ...
            1 << (count - 1).bit_length(),
            min(rounded_slots(reach), cache.slots),
            hidden,
        )
        large = kind.rows > MOST_ROWS or kind.rows * kind.tokens > MOST_TOKENS
        return None if large else kind

    def forward(
        self,
        cache: SlotCache,
        kind: Kind,
        given: tuple[Tensor, Tensor, Tensor, Tensor],
        keep: int,
        eager: Callable[[], Outputs],
    ) -> Outputs:
        """Runs a pass of a kind on tokens, positions and slots [R, T] and what is visible [R, T,
        S], without fillers; by the module, ``eager``, where it must be.

        Returns logits [R, T', V], the last ``keep`` or all, and, if asked for, hidden states [R, T,
        D], the caller's to keep.
        """
        passes: dict[Kind, StaticPass | None] = cache.passes
        if kind not in passes:
            self.counts.captures += 1
            passes[kind] = self._made(cache, kind)
        ready = passes[kind]
        if ready is not None and ready.unchecked == 0:
            self.counts.static += 1
            return _kept(ready.run(*given), given[0], keep)
        self.counts.eager += 1
        if ready is None:
            return eager()
        # The module's pass comes second: what it writes is right, whatever the other one wrote.
        answers = _kept(ready.run(*given), given[0], keep)
        expected = eager()
        ready.unchecked -= 1
        reasons = [disagreement(one, right) for one, right in zip(answers, expected, strict=True)]
        if reason := next(filter(None, reasons), ""):
            self._refuse(kind, reason)
            passes[kind] = None
        return expected

    def _made(self, cache: SlotCache, kind: Kind) -> StaticPass | None:
        """Returns a new static pass; None if it could not be made."""
        buffers = Buffers.standing_in(kind, cache.slots, self._device)
        held = ref(cache)  # which holds the pass
        run = self._ways[0]

        def function(filled: Buffers) -> Outputs:
            written = held()
            assert written is not None
            return run(written, kind, filled)

        try:
            return StaticPass(buffers, function, self.recorder)
        except Exception as error:  # recording fails in many ways; none may end a run
            if len(self._ways) > 1:
                log.warning("static passes are not fused: %s", one_line(error)[:300])
                del self._ways[0]
                return self._made(cache, kind)
            self._refuse(kind, one_line(error))
            return None

    def _refuse(self, kind: Kind, reason: str) -> None:
        """Notes why a kind of pass stays with the module; the first time a line says so."""
        if not self.refusals:
            what = "a static pass of %d x %d tokens over %d slots stays eager: %s"
            log.warning(what, *kind[:3], reason[:300])
        self.refusals.append(reason)
        self.counts.refused += 1

    def prepare(
        self, cache: SlotCache, shortest: int, batch: int, run: Callable[[Kind, int], None]
    ) -> None:
        """Makes ahead of time what growing sequences, of ``shortest`` slots at least, and emptying
        batches of up to ``batch`` will need. Which kinds these are, in the widest batch at least,
        the cache's passes tell; ``run`` makes one pass of a kind over a number of slots.
        """
        widest: dict[tuple[int, tuple[int, ...]], int] = {}
        for kind in cache.passes:
            # What a draft has not seen yet is one token or two, as the iteration before ended.
            for tokens in (1, 2) if kind.tokens <= 2 else (kind.tokens,):
                what = tokens, kind.needs_hidden
                widest[what] = max(kind.rows, widest.get(what, 0))
        for (tokens, hidden), most in sorted(widest.items()):
            whole = most % batch == 0
            rows = [most * left // batch for left in range(1, batch + 1)] if whole else [most]
            for slots in slot_steps(shortest, cache.slots):
                for count in rows:
                    kind = self.kind(cache, count, tokens, slots, hidden)
                    if kind and kind.tokens < slots and kind not in cache.passes:
                        for reach in range(slots - CHECKS + 1, slots + 1):
                            run(kind, reach)


def _kept(outputs: Outputs, tokens: Tensor, keep: int) -> Outputs:
    """Copies of the outputs of tokens [R, T], of which there may be fewer; of logits, ``keep``."""
    rows, count = tokens.shape
    logits, *hidden = outputs
    return (
        logits[:rows, -(keep or count) :].clone(),
        *(states[:rows, -count:].clone() for states in hidden),
    )
