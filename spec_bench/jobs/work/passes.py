"""How the forward passes of a cell's windows ran, if they may run in two ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.static_pass import PassCounts


@dataclass
class PassTally:
    """Counts of the passes of target and drafts, over all windows that the cell was given.

    Attributes:
        static: passes over fixed buffers.
        eager: passes of the modules themselves.
        captures: static passes that were made meanwhile.
    """

    static: int = 0
    eager: int = 0
    captures: int = 0
    _before: PassCounts = field(default_factory=PassCounts)

    def begin(self, decoder: AnyDecoder) -> None:
        """Opens a window."""
        self._before = _now(decoder)

    def end(self, decoder: AnyDecoder) -> None:
        """Closes it."""
        now, before = _now(decoder), self._before
        self.static += now.static - before.static
        self.eager += now.eager - before.eager
        self.captures += now.captures - before.captures

    def columns(self) -> dict[str, Any]:
        """What a row says of them."""
        count = self.static + self.eager
        if not self.static:
            ran = "eager"
        elif not self.eager:
            ran = "static"
        else:
            ran = f"static {self.static / count:.1%}"
        return {"passes": ran, "captures": self.captures}


def _now(decoder: AnyDecoder) -> PassCounts:
    """The counts of all models of a decoder; models that run in one way only count none."""
    models = {id(model): model for model in (decoder.target, *decoder.drafts)}.values()
    found = [own.counts for model in models if (own := getattr(model, "static", None)) is not None]
    return PassCounts(
        sum(each.static for each in found),
        sum(each.eager for each in found),
        sum(each.captures for each in found),
    )
