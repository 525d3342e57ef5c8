"""PARD (arXiv 2504.18583): a draft model whose one pass guesses every level.

After the root it reads K - 1 mask tokens, whose rows guess the tokens after them; it was trained
so. Nothing of the masks is kept, and no node of a tree is run: what the draft has not seen of the
committed tokens waits for the next pass.

Letters: R rows, P pending tokens, K levels, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from spec_bench.core.transfer import Committed
from spec_bench.draft.base import Drafter, Drafting, Equipment, Verified, drafter
from spec_bench.draft.language_model import LanguageModelDrafting
from spec_bench.draft.levels import LevelDrafting, taken, with_masks
from spec_bench.draft.network import Heads
from spec_bench.engine.mapped_model import MappedModel
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import run_pending
from spec_bench.settings.fields import Range


class ParallelDrafting(LevelDrafting, LanguageModelDrafting):
    """One such model."""

    def __init__(
        self, model: LanguageModel, caches: Sequence[Any], rows: int, levels: int, mask_token: int
    ) -> None:
        super().__init__([model], caches, rows)
        self._count, self._mask = levels, mask_token

    def levels(self, committed: Committed) -> Tensor:
        (model,), (cache,) = self.models, self._caches
        tokens, starts, last = self._pending
        ids, root = tokens.on(model.device), last.on(model.device).unsqueeze(1)
        ids = with_masks(ids, root, self._count - 1, self._mask)
        logits = run_pending(model, cache, starts, ids, logits_to_keep=0).logits
        return taken(logits, root.to(logits.device), self._count)

    def commit(
        self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor, depth: int
    ) -> None:
        super().commit(lengths, nodes, path, 1)

    def follow(self, verified: Verified, depth: int, following: Committed) -> None:
        super().follow(verified, 1, following)


@drafter("pard")
@dataclass(frozen=True)
class Pard(Drafter):
    """The pair's draft, if it is such a model; it guesses all levels at once, so L is 1."""

    levels: Annotated[int, Range(1, 64)] = 12  # K, levels that one pass guesses
    # what stands for a token not known; null: the draft's `pard_token`
    mask_token: Annotated[int, Range(0)] | None = None

    @property
    def models(self) -> int:
        return 1

    def calls(self, depth: int) -> int:
        return 1

    def reach(self, heads: Heads | None) -> int:
        return self.levels

    def more_slots(self, heads: Heads | None) -> int:
        return self.levels

    @classmethod
    def audit_cases(cls, models: int) -> tuple[Drafter, ...]:
        """Its distribution at a level hangs on the committed tokens and the mask: here a chain's
        first.
        """
        return (cls(levels=3, mask_token=0),) if models == 1 else ()

    def drafting(self, equipment: Equipment) -> Drafting:
        """What drafts.

        Raises:
            ValueError: the draft has another vocabulary, or no mask token is named.
        """
        (model,) = equipment.models
        if isinstance(model, MappedModel):
            raise ValueError("a pard drafter needs a draft with the target's vocabulary")
        token = getattr(model, "mask_token", None) if self.mask_token is None else self.mask_token
        if token is None:
            raise ValueError(
                "a pard drafter needs a draft trained for it: its config.json names no pard_token, "
                "and drafter.mask_token is null"
            )
        return ParallelDrafting(model, equipment.caches, equipment.rows, self.levels, token)
