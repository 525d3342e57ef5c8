"""An iteration's parts as recordings: on a GPU one launch each, their random numbers drawn before.

In the first iteration of so many rows every part is called, and which random numbers it asks for is
noted: they hang on shapes alone. In the second each is recorded over buffers, as passes are
(``engine/static_pass``); its first answers are compared with a call's. What asks otherwise, fails
or differs leaves all parts of so many rows to calls, and a line says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.draws import SeededDraws, SeededPositions
from spec_bench.engine.static_pass import CHECKS, StaticPasses
from spec_bench.settings.fields import one_line

log = logging.getLogger(__name__)
Asked = tuple[str, tuple[int, ...]]  # uniforms of a shape, or the numbers of so many positions


@dataclass
class Part:
    """One recorded part."""

    given: list[Tensor]  # what it reads, filled before every replay
    numbers: list[Tensor]  # [R, ...] its random numbers, likewise
    of: object  # what it goes on with
    result: Any = None  # what a replay overwrites
    replay: Callable[[], None] = lambda: None  # runs it
    unchecked: int = CHECKS  # how many more answers to compare with a call's


@dataclass
class RowParts:
    """The parts of an iteration of so many rows."""

    passes: StaticPasses  # the target's, which say how a device records
    # per part the random numbers that it asks for
    asked: dict[Hashable, list[Asked]] = field(default_factory=dict)
    made: dict[Hashable, Part] = field(default_factory=dict)  # the recorded ones
    refused: str = ""  # why none is recorded any more; "" while they are

    def refuse(self, name: Hashable, reason: str) -> None:
        """Leaves all parts to calls."""
        log.warning("recorded parts stay calls: %s: %s", name, reason[:300])
        self.refused = reason
        self.made.clear()
        self.passes.refusals.append(reason)
        self.passes.counts.refused += 1


class RecordedDraws(SeededDraws):
    """Draws that note what a part asks for, or give it what was drawn before."""

    def __init__(self, generators: Sequence[torch.Generator], parts: RowParts) -> None:
        super().__init__(generators)
        self._parts = parts
        self._note: list[Asked] | None = None
        self._ready: Iterator[Tensor] | None = None

    def run_part(
        self, name: Hashable, function: Callable[..., Any], given: tuple[Tensor, ...], of: object
    ) -> Any:
        """Calls or replays a part; see ``core.draws.run_part``."""
        parts, key = self._parts, (name, tuple(tensor.shape for tensor in given))
        if parts.refused:
            return function(self, *given)
        whole = of is None or any(of is each.result for each in parts.made.values())
        if key not in parts.asked:
            self._note = parts.asked[key] = []
            result = function(self, *given)
            self._note = None
            return result
        part = parts.made.get(key)
        if not whole or (part is not None and part.of is not of):
            return function(self, *given)  # it goes on with what was called
        numbers = self._drawn(parts.asked[key], None if part is None else part.numbers)
        try:
            if part is None:
                part = parts.made[key] = Part([each.clone() for each in given], numbers, of)
                self._record(part, function)
            for kept, new in zip(part.given, given, strict=True):
                kept.copy_(new)
            part.replay()
        except Exception as error:  # recording fails in many ways; none may end a run
            parts.refuse(name, one_line(error))
            return self._called(function, given, numbers)
        if not part.unchecked:
            return part.result
        part.unchecked -= 1
        found = [tensor.clone() for tensor in tensors_of(part.result)]
        result = self._called(function, given, numbers)
        if all(map(same, found, tensors_of(result))):
            return part.result
        parts.refuse(name, "a replay's answer is not a call's")
        return result

    def _record(self, part: Part, function: Callable[..., Any]) -> None:
        """Records a part over its buffers."""
        # Graphs of one pool hand each other's memory on: what a part leaves lies outside of it.
        part.result = self._called(function, part.given, part.numbers)
        kept = tensors_of(part.result)

        def run() -> tuple[Any, ...]:
            made = tensors_of(self._called(function, part.given, part.numbers))
            for there, new in zip(kept, made, strict=True):
                if there is not new:
                    there.copy_(new)
            return ()

        recorder = self._parts.passes.recorder
        assert recorder is not None  # on a GPU there is one
        graph, _ = recorder.record(run)
        part.replay = graph.replay
        self._parts.passes.counts.captures += 1

    def _called(
        self, function: Callable[..., Any], given: Sequence[Tensor], numbers: Sequence[Tensor]
    ) -> Any:
        """Calls the function with random numbers that were drawn before."""
        self._ready = iter(numbers)
        try:
            return function(self, *given)
        finally:
            self._ready = None

    def _drawn(self, asked: Sequence[Asked], buffers: Sequence[Tensor] | None) -> list[Tensor]:
        """Draws what a part will ask for into its buffers, in the order in which it asks."""
        if buffers is None:
            rows, device = len(self.generators), self.generators[0].device
            shapes = [(rows, *shape) for _, shape in asked]
            buffers = [torch.empty(each, dtype=torch.float64, device=device) for each in shapes]
        for (what, _), buffer in zip(asked, buffers, strict=True):
            if what == "positions" and len(buffer[0]) > 1:
                self._before = [generator.get_state() for generator in self.generators]
            for row, generator in zip(buffer, self.generators, strict=True):
                # One number per call, as ``by_position`` draws them.
                for part in row.split(1) if what == "positions" else (row,):
                    part.uniform_(generator=generator)
        return list(buffers)

    def gumbel(self, like: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        if counts is not None and self._note is not None:
            self._parts.refuse("gumbel", "how much it draws hangs on the tree")
        return super().gumbel(like, counts)

    def _uniforms(self, *shape: int) -> Tensor:
        if self._ready is not None:
            return next(self._ready).clone()  # some are worked on in place
        if self._note is not None:
            self._note.append(("uniforms", shape))
        return super()._uniforms(*shape)

    def by_position(self, count: int) -> SeededPositions:
        if self._ready is not None:
            return SeededPositions(next(self._ready))
        note, self._note = self._note, None  # what it draws is noted as a whole
        positions = super().by_position(count)
        self._note = note
        if note is not None:
            note.append(("positions", (count,)))
        return positions


def tensors_of(value: Any) -> list[Tensor]:
    """Returns all tensors in a value, those of lists, tuples and attributes among them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_of(each)]
    return tensors_of(list(vars(value).values())) if hasattr(value, "__dict__") else []


def same(one: Tensor, other: Tensor) -> bool:
    """Returns whether whole numbers are equal, and others up to rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool((one == other).all())
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
