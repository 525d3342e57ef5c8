"""An iteration that the device was given, and whose verdict the host may read later.

On a GPU the host is one iteration behind: it gives the device the next iteration before it reads
what came of the last, so that the device never waits for it. Lengths, roots and what a draft has to
catch up with stay on the device; of lengths the host knows bounds, which fix how far a pass reads.
A row that turns out to have ended has then run once more than it had to; what the others drew
meanwhile is given back, and the iteration is launched anew without that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.transfer import Committed, Followed, Known
from spec_bench.core.tree import Tree
from spec_bench.decode.rows import Row
from spec_bench.draft.base import Verified
from spec_bench.verify.walk import WalkResult


class Judged(NamedTuple):
    """What came of the trees, on the device."""

    result: WalkResult  # the walk's end
    emitted: Tensor  # [R, L + 1] tokens; the last one, the next root, fills up what is left
    message: Tensor  # [R, ...] float64 what the host is sent


@dataclass
class Launched:
    """One iteration on its way."""

    rows: Sequence[Row]  # that take part, in their order in the caches
    lengths: Known  # [R] tokens before each root
    tree: Tree
    judged: Judged
    draws: Draws
    states: Sequence[Tensor] = ()  # of the rows' generators before it
    there: bool = False  # whether the caches keep its accepted path already
    _home: Tensor | None = field(default=None, init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)

    def send_home(self) -> None:
        """Copies the message to the host, which goes on meanwhile."""
        message = self.judged.message
        self._home = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
        self._home.copy_(message, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(message.device))

    def read(self) -> list[list[float]]:
        """The message; the host waits until this iteration is over."""
        if self._arrived is not None:
            self._arrived.synchronize()
        message = self.judged.message if self._home is None else self._home
        verdict: list[list[float]] = message.tolist()
        return verdict

    def is_of(self, rows: Sequence[Row]) -> bool:
        """Whether these very rows take part, in this order."""
        pairs = zip(self.rows, rows, strict=False)
        return len(self.rows) == len(rows) and all(one is other for one, other in pairs)

    def take_back(self) -> None:
        """As if it had never been launched: what it wrote lies behind what the rows keep."""
        for row, state in zip(self.rows, self.states, strict=True):
            row.generator.set_state(state)

    @property
    def drafted_depth(self) -> int:
        """Levels whose nodes are where the drafter ran them: of a rearranged tree only the root."""
        return 1 if self.tree.rearranged else self.tree.shape.depth

    def next_lengths(self) -> Followed:
        """[R] tokens before the next roots, which the host knows to be within bounds."""
        accepted, depth = self.judged.result.accepted, self.judged.emitted.shape[1]
        before = [row.length for row in self.rows]  # before this iteration, exactly
        there = self.lengths.on(accepted.device) + accepted + 1
        return Followed([length + depth for length in before], there, min(before) + 1)

    def followed(self) -> Committed:
        """What the next iteration goes on from."""
        return Committed.followed(self.next_lengths(), self.judged.result.token)

    def verified(self) -> Verified:
        """What a drafter goes on from."""
        result = self.judged.result
        return Verified(self.lengths, result.path, result.accepted, self.judged.emitted)
