"""How the forward passes of a cell's windows ran, if they may run in two ways."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import Any

from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.static_pass import PassCounts, passes_of


@dataclass
class PassTally:
    """Counts of the passes of target and drafts, over all windows that the cell was given."""

    counts: PassCounts = field(default_factory=PassCounts)  # of all windows that were closed
    _before: PassCounts = field(default_factory=PassCounts)

    def begin(self, decoder: AnyDecoder) -> None:
        """Opens a window."""
        self._before = passes_of((decoder.target, *decoder.drafts))

    def end(self, decoder: AnyDecoder) -> None:
        """Closes it."""
        window = passes_of((decoder.target, *decoder.drafts)) - self._before
        both = zip(astuple(self.counts), astuple(window), strict=True)
        self.counts = PassCounts(*(sum(pair) for pair in both))

    def columns(self) -> dict[str, Any]:
        """What a row says of them."""
        return {"passes": self.counts.share, "captures": self.counts.captures}
