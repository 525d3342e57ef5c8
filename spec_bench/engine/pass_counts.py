"""How the passes of models ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any


@dataclass
class PassCounts:
    """How a model's passes ran, prompts' excluded.

    Attributes:
        static: over fixed buffers.
        eager: by the module itself.
        captures: static passes that were made.
        refused: kinds of pass that stayed with the module for good.
    """

    static: int = 0
    eager: int = 0
    captures: int = 0
    refused: int = 0

    def __sub__(self, before: PassCounts) -> PassCounts:
        return PassCounts(
            *(now - then for now, then in zip(astuple(self), astuple(before), strict=True))
        )

    @property
    def share(self) -> str:
        """How passes ran: static, eager, or static with its share of all."""
        if not self.static:
            return "eager"
        if not self.eager:
            return "static"
        return f"static {self.static / (self.static + self.eager):.1%}"


def passes_of(models: Iterable[Any]) -> PassCounts:
    """The counts of several models; those that run in one way only count none."""
    held = {id(model): getattr(model, "static", None) for model in models}.values()
    counts = [astuple(passes.counts) for passes in held if passes is not None]
    return PassCounts(*map(sum, zip(*counts, strict=True)))
