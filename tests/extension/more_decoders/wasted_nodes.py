"""A number that spec_bench does not have."""

from collections.abc import Sequence

from spec_bench.metrics import PromptSums, metric
from spec_bench.records.types import Generation


@metric(
    "wasted_nodes",
    title="wasted nodes",
    definition="tree nodes verified and not accepted / target calls",
    kind="efficiency",
    interval=True,
    better="down",
    short="waste",
)
def wasted_nodes(generations: Sequence[Generation]) -> PromptSums:
    """Nodes beside the accepted path, per target call."""
    wasted = tuple(float(sum(s.nodes - s.accepted for s in g.steps)) for g in generations)
    return PromptSums(wasted, tuple(float(len(g.steps)) for g in generations))
