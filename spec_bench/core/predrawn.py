"""Random numbers of a recorded iteration, drawn before it because a graph draws none."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from spec_bench.core.draws import SeededPositionDraws, SeededSource, read_generator_position

DrawRequest = tuple[bool, int]
"""Whether the uniforms are for positions, and their number per row."""


class DrawRecorder(SeededSource):
    """Records the sizes of an iteration's draws, which depend on shapes alone."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__(generators)
        self.requests: list[DrawRequest] = []

    def _draw_uniforms(self, *shape: int) -> Tensor:
        self.requests.append((False, prod(shape)))
        return super()._draw_uniforms(*shape)

    def prepare_positions(self, count: int) -> SeededPositionDraws:
        request_count = len(self.requests)
        positions = super().prepare_positions(count)
        self.requests[request_count:] = [(True, count)]
        return positions


class PredrawnSource(SeededSource):
    """Hands out ``numbers`` [R, n] in [0, 1), float64, in the order requested. The first rows
    belong to the generators. Allocates the numbers if none are given.
    """

    _fresh = False

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        shape: tuple[int, ...],
        numbers: Tensor | None = None,
    ) -> None:
        super().__init__(generators)
        if numbers is None:
            numbers = torch.empty(shape, dtype=torch.float64, device=generators[0].device)
        self.numbers = numbers
        self._used = 0

    def draw_requested(self, requests: Sequence[DrawRequest]) -> None:
        """Draws each row's numbers from its generator: a call for each position's number, and as
        few calls as the order allows for all other numbers.
        """
        calls: list[tuple[int, bool]] = []  # count, and whether ``advance`` may rewind to here
        merges = False
        for positions, count in requests:
            if positions:
                calls += [(1, place == 0 and count > 1) for place in range(count)]
            elif merges:
                calls[-1] = calls[-1][0] + count, False
            else:
                calls.append((count, False))
            merges = not positions
        counts = [count for count, _ in calls]
        for row, generator in zip(self.numbers, self.generators, strict=False):
            for part, (_, may_rewind) in zip(row.split(counts), calls, strict=True):
                start = read_generator_position(generator) if may_rewind else None
                part.uniform_(generator=generator)
                if may_rewind:
                    self._rewind_positions.append((start, read_generator_position(generator)))

    def _draw_uniforms(self, *shape: int) -> Tensor:
        start = self._used
        self._used = self._used + prod(shape)
        return self.numbers[:, start : self._used].reshape(-1, *shape)

    def prepare_positions(self, count: int) -> SeededPositionDraws:
        return SeededPositionDraws(self._draw_uniforms(count), self.choose)
