"""PARD (arXiv 2504.18583): a draft model that guesses every level in one pass.

The model is trained to read K - 1 mask tokens after the root, whose outputs guess the tokens after
them. The masks' cache entries are overwritten, and no tree node is ever run, so the next pass first
runs the committed tokens that the draft has not seen.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval
from torch import Tensor

from spec_bench.core.host_device import CommittedTokens
from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.language_model import LanguageModelDraftState
from spec_bench.draft.levels import OnePassDraftState, append_masks, gather_consecutive
from spec_bench.draft.network import DraftHeads
from spec_bench.engine.mapped_model import VocabularyMappedModel
from spec_bench.engine.tree_pass import run_causal_tokens
from spec_bench.system.errors import UsageError


class PardDraftState(OnePassDraftState, LanguageModelDraftState):
    """State of a PARD model."""

    is_forgetful = False

    def __init__(self, resources: DraftResources, levels: int, mask_token: int) -> None:
        super().__init__(resources)
        self._level_count = levels
        self._mask_token = mask_token

    def compute_level_logits(self, committed: CommittedTokens) -> Tensor:
        (model,) = self.models
        (cache,) = self._caches
        tokens, starts, root_index = self._pending
        ids = tokens.get_tensor(model.device)
        root = root_index.get_tensor(model.device).unsqueeze(1)
        ids = append_masks(ids, root, self._level_count - 1, self._mask_token)
        logits = run_causal_tokens(model, cache, starts, ids, logits_to_keep=0).logits
        return gather_consecutive(logits, root.to(logits.device), self._level_count)


@drafter("pard")
@dataclass(frozen=True)
class Pard(Drafter):
    """The pair's draft, if it is such a model; it guesses all levels at once, so L is 1."""

    levels: Annotated[int, Interval(ge=1, le=64)] = 12  # K, number of levels guessed in one pass
    # the draft's placeholder of an unknown token; null: its `pard_token`
    mask_token: Annotated[int, Interval(ge=0)] | None = None

    passes = 1

    @property
    def model_count(self) -> int:
        return 1

    def find_max_depth(self, heads: DraftHeads | None) -> int:
        return self.levels

    def extra_slots(self, heads: DraftHeads | None) -> int:
        return self.levels

    @classmethod
    def audit_cases(cls, model_count: int) -> tuple[Drafter, ...]:
        """A level's distribution depends on the committed tokens and masks alone."""
        return (cls(levels=3, mask_token=0),) if model_count == 1 else ()

    def make_state(self, resources: DraftResources) -> DraftState:
        """Makes the state of a batch. Raises UsageError if the draft has another tokenizer, or if
        no mask token is named.
        """
        (model,) = resources.models
        # from this id on a mapped model takes the draft's own tokens
        id_offset = model.vocab_size if isinstance(model, VocabularyMappedModel) else 0
        if getattr(model, "pieces", None):
            raise UsageError("a pard drafter needs a draft with the target's tokenizer")
        token = getattr(model, "mask_token", None) if self.mask_token is None else self.mask_token
        if token is None:
            raise UsageError(
                "a pard drafter needs a draft trained for it: its config.json names no pard_token, "
                "and drafter.mask_token is null"
            )
        return PardDraftState(resources, self.levels, id_offset + token)
