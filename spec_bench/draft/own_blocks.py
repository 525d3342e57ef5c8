"""The target drafts for itself with some of its blocks left out, without files or training.

Either it exits early after the first blocks (LayerSkip, arXiv 2404.16710, needs a model trained for
it), or it skips blocks in between (Draft & Verify, arXiv 2309.08168). Any choice made in advance
keeps the target's distribution: the shorter model is a draft like any other, with its own cache.
"""

from dataclasses import dataclass

from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.language_model import make_language_model_state
from spec_bench.engine.model import LanguageModel
from spec_bench.settings.fields import Count, format_value
from spec_bench.system.errors import UsageError


@drafter("own_blocks")
@dataclass(frozen=True)
class OwnBlocks(Drafter):
    """The target's own blocks, some of them."""

    first: Count | None = None  # number of first blocks to keep; null: see `kept`
    # indices of kept blocks, ascending; if null, as is `first`: every other block, from the first,
    # and the last
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.kept is not None:
            raise UsageError(f"first and kept exclude each other, got {self.first} and {self.kept}")
        if self.kept is not None and (
            not self.kept or min(self.kept) < 0 or sorted(set(self.kept)) != list(self.kept)
        ):
            raise UsageError(
                f"kept must be rising places from 0, got {format_value(list(self.kept))}"
            )

    @property
    def has_own_model(self) -> bool:
        return True

    def get_kept_blocks(self, blocks: int) -> tuple[int, ...]:
        """Returns the indices of the kept blocks of a target of ``blocks`` blocks. Raises
        UsageError if it lacks a kept block.
        """
        if self.kept is not None:
            places = self.kept
        elif self.first is not None:
            places = tuple(range(self.first))
        else:
            places = tuple(sorted({*range(0, blocks, 2), blocks - 1}))
        if places[-1] >= blocks:
            raise UsageError(f"the target has blocks 0 to {blocks - 1}, got {places[-1]}")
        return places

    def make_own_model(self, target: LanguageModel) -> LanguageModel:
        from spec_bench.engine.target_blocks import make_block_view  # needs transformers

        views = vars(target).setdefault("views", {})
        places = self.get_kept_blocks(target.blocks)
        if places not in views:
            views[places] = make_block_view(target, places)
        return views[places]

    @classmethod
    def audit_cases(cls, model_count: int) -> tuple[Drafter, ...]:
        return ()  # a draft model like any other, of a target that has blocks

    def make_state(self, resources: DraftResources) -> DraftState:
        return make_language_model_state(resources)
