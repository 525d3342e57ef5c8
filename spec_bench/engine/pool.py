"""Caches that the decoders of a job share: they decode in turn, so one set serves them all."""

from __future__ import annotations

from typing import Any

from spec_bench.engine.model import LanguageModel


class CachePool:
    """One cache per role (``target``, ``draft 0``, ...), as large as the largest request so far.

    A decoder prefills its rows before it decodes, so whatever another one left behind does no harm.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[LanguageModel, int, int, Any]] = {}

    def cache(self, role: str, model: LanguageModel, rows: int, slots: int) -> Any:
        """A cache of at least ``rows`` x ``slots``; a new one only if the held one is too small.

        Args:
            role: who asks; two caches in use at the same time need two roles.
            model: whose cache.
            rows: sequences.
            slots: tokens per sequence, tree included.
        """
        if role in self._held:
            held_for, held_rows, held_slots, cache = self._held[role]
            if held_for is model and held_rows >= rows and held_slots >= slots:
                return cache
            if held_for is model:
                rows, slots = max(rows, held_rows), max(slots, held_slots)
            del self._held[role], cache  # before the larger one is allocated
        self._held[role] = model, rows, slots, model.allocate(rows, slots)
        return self._held[role][3]
