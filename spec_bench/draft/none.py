"""No drafter: autoregressive decoding, and beams without a draft."""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter


class Nothing(Drafting):
    """No drafting."""

    follows = True


@drafter("none")
@dataclass(frozen=True)
class NoDrafter(Drafter):
    """Proposes nothing."""

    policies = ("root", "beam_root")

    def drafting(self, equipment: Equipment) -> Drafting:
        return Nothing()
