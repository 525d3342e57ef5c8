"""Tree policies of beam sampling, beam search and DSBD, and of a head's beams.

``decode.beam_decoder`` drafts and verifies beam sampling, beam search and DSBD; their beams are not
walked as trees.
"""

from dataclasses import dataclass, field, replace

from spec_bench.core.beam_tree import build_merged_beam_tree, build_separate_beam_tree
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count, Share
from spec_bench.system.errors import UsageError
from spec_bench.tree.base import AuditTree, GrowthContext, Policy, policy, refuse_too_many_nodes
from spec_bench.tree.widths import RectangularTree
from spec_bench.vocabulary.spec import Spec


@policy("beam_root", forms=("number",), takes="a number of beams such as 4")
@dataclass(frozen=True)
class BeamRoot(Policy):
    """W beams without a draft."""

    width: Count  # W

    drafters = ("none",)

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"width": spec.numbers[0]}

    @property
    def spec(self) -> str:
        return str(self.width)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2)),)


@policy(
    "beams",
    forms=("product", "threshold"),
    takes="WxL@t: W draft beams, L layers, threshold t, such as 4x2@0.9",
)
@dataclass(frozen=True)
class DraftBeams(Policy):
    """Beams that a draft model proposes, layer by layer (DSBD, arXiv 2409.16560, section 3)."""

    width: Count  # W_S, draft beams per layer
    depth: Count  # gamma, draft layers
    threshold: Share  # t, probability with which a layer must reach its width
    least: Count  # W_min

    drafters = ("language_model",)

    def __post_init__(self) -> None:
        refuse_too_many_nodes("width", self.width * self.depth)
        if self.least > self.width:
            raise UsageError(f"least must be at most tree.width = {self.width}, got {self.least}")

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        sizes: dict[str, object] = {"width": spec.width, "depth": spec.depth}
        return sizes if spec.threshold is None else {**sizes, "threshold": spec.threshold}

    @property
    def spec(self) -> str:
        return f"{self.width}x{self.depth}@{self.threshold:g}"

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        # With threshold 0 an output layer is as wide as the draft's, so this is beam sampling.
        return (
            AuditTree(cls(2, 2, 0.0, 1), vocab=2),
            AuditTree(cls(2, 1, 0.0, 1)),
            AuditTree(cls(1, 2, 0.0, 1)),
        )


@policy("head_beams", forms=("product",), takes="WxL: W beams of L tokens, such as 8x5")
@dataclass(frozen=True)
class HeadBeams(RectangularTree):
    """W beams of L tokens from a recurrent head, with shared prefixes merged or not.

    The head returns whole beams, so the tree is not grown level by level. The beams are
    deterministic given the head's state: verification takes them as one-hot proposals by rank.
    """

    # whether shared prefixes become one node; the shape is then an upper bound
    merge: bool = field(default=True, metadata={"setting": False})

    drafters = ("redrafter",)

    @property
    def walk_merges_copies(self) -> bool:  # type: ignore[override]
        return not self.merge

    def adapt_to_attention(self, tree_attention: bool) -> Policy:
        return replace(self, merge=tree_attention)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def grow_tree(self, context: GrowthContext) -> Tree:
        beams = context.draft_state.search_beams(context.committed.roots, self.width, self.depth)
        grow = build_merged_beam_tree if self.merge else build_separate_beam_tree
        return grow(context.root_tokens, beams.to(context.device))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2, 2)),)
