"""Drafting with an EAGLE-3 head, level by level or, if it was trained so, all levels at once.

P-EAGLE (arXiv 2602.01469): after the pairs with features from the target, the last of which has the
root's token, come K - 1 rows of a mask token with a learned feature, ``mask_hidden``, under the
same causal attention. Row d guesses the token d after the next. Nothing of the masks is kept.

Letters: R rows, P waiting pairs, K levels, D width of the head, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from torch import Tensor

from spec_bench.core.transfer import Committed
from spec_bench.draft.base import Drafter, Drafting, Equipment, drafter
from spec_bench.draft.eagle import EagleDrafting
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.levels import LevelDrafting, taken, with_masks
from spec_bench.draft.network import Heads
from spec_bench.engine.model import LanguageModel, Layers
from spec_bench.engine.tree_pass import run_pending
from spec_bench.settings.fields import Range

if TYPE_CHECKING:  # it needs transformers, which a refusal does not
    from spec_bench.engine.cache import SlotCache


class ParallelEagleDrafting(LevelDrafting, EagleDrafting):
    """One P-EAGLE head on the target's features.

    Args:
        head: the head, on the target's device.
        target: gives embeddings.
        cache: the head's own.
        rows: rows of the caches.
        levels: K.
    """

    def __init__(
        self, head: Eagle3Head, target: LanguageModel, cache: SlotCache, rows: int, levels: int
    ) -> None:
        super().__init__(head, target, cache, rows)
        self._masked, self._count = head, levels

    def levels(self, committed: Committed) -> Tensor:
        self._timer.start()
        rows, waiting, more = len(committed), len(self._tokens[0]), self._count - 1
        device, mask = self._features.device, self._masked.shape.mask_token
        last = self._last.on(device).unsqueeze(1)
        assert mask is not None
        tokens = with_masks(self._tokens.on(device), last, more, mask)
        handed = self._features[:rows, :waiting]
        features: Any = self.run(with_masks(handed, last, more, self._masked.mask_hidden))
        output = run_pending(features, self._cache, self._starts, tokens, logits_to_keep=0).hidden
        assert output is not None
        output = taken(output, last, self._count)
        logits = self._masked.logits(output, self._target.project, self._target.vocab_size)
        self._timer.stop()
        return logits


@drafter("eagle3")
@dataclass(frozen=True)
class Eagle3(Drafter):
    """An EAGLE-3 head.

    Attributes:
        layer_ids: what the config's layer ids name: a block's ``input``, its ``output``, or what
            they name in the file's family.
        parallel: K, levels that a head with masks guesses at once (P-EAGLE); 0: level by level.
    """

    layer_ids: Literal["auto", "input", "output"] = "auto"
    parallel: Annotated[int, Range(0, 64)] = 0

    heads = Eagle3Head

    def layers(self, heads: Heads | None, blocks: int) -> Layers:
        """Three places, low to high: 2, L / 2 and L - 3 by default.

        Raises:
            ValueError: a place that no forward pass returns.
        """
        assert isinstance(heads, Eagle3Head)
        return heads.places(blocks, self.layer_ids)

    def calls(self, depth: int) -> int:
        return 1 if self.parallel else depth

    def reach(self, heads: Heads | None) -> int | None:
        assert isinstance(heads, Eagle3Head)
        masks = heads.shape.mask_token is not None
        if masks != (self.parallel > 0):
            trained = "all levels at once (P-EAGLE)" if masks else "level by level"
            raise ValueError(
                f"drafter.parallel is {self.parallel}, the EAGLE-3 head was trained to guess "
                f"{trained}"
            )
        return self.parallel or None

    def more_slots(self, heads: Heads | None) -> int:
        return self.parallel

    def drafting(self, equipment: Equipment) -> Drafting:
        given = equipment.heads, equipment.target, equipment.heads_cache, equipment.rows
        if self.parallel:
            return ParallelEagleDrafting(*given, self.parallel)
        return EagleDrafting(*given)
