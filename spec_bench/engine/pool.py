"""Caches that the decoders of a job share: they decode in turn, so one set serves them all."""

from __future__ import annotations

from typing import Any, Protocol


class Allocates(Protocol):
    """What has a cache: a model, or draft heads with a cache of their own."""

    def allocate(self, rows: int, slots: int) -> Any:
        """A cache for ``rows`` sequences of up to ``slots`` tokens."""
        ...


class CachePool:
    """One cache per role (``target``, ``draft 0``, ...), as large as the largest request so far.

    A decoder prefills its rows before it decodes, so whatever another one left behind does no harm.
    A cache grows in place, for all who hold it, so that none keeps a smaller one alive beside it.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[Allocates, Any]] = {}

    def cache(self, role: str, model: Allocates, rows: int, slots: int) -> Any:
        """The role's cache, of at least ``rows`` x ``slots``.

        Args:
            role: who asks; two caches in use at the same time need two roles.
            model: whose cache.
            rows: sequences.
            slots: tokens per sequence, tree included.
        """
        slots *= getattr(model, "stretch", 1)  # of another tokenizer, whose texts are longer
        if role in self._held and self._held[role][0] is model:
            self._held[role][1].grow(rows, slots)
        else:
            self._held.pop(role, None)  # before the new one is allocated
            self._held[role] = model, model.allocate(rows, slots)
        return self._held[role][1]

    def prepare(self, batch: int, shortest: int = 1) -> None:
        """Makes models prepare what their passes will need; a warm-up showed which kinds there are.

        Args:
            batch: most sequences that decode together.
            shortest: tokens of the shortest prompt.
        """
        for model, cache in self._held.values():
            if hasattr(model, "prepare"):
                model.prepare(cache, batch, shortest)
