"""Which decoders can be forecast, and how many calls each needs for a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig
from spec_bench.recommend.calls import (
    at_least_by_block,
    at_least_by_level,
    drafted_on,
    expected_calls,
)
from spec_bench.recommend.passing import Sets, drawn, passing, ranked_passing
from spec_bench.tree.base import GrownTree
from spec_bench.tree.chain import Chain
from spec_bench.tree.dynamic_chain import DynamicChain
from spec_bench.tree.sizes import Branching
from spec_bench.tree.top_and_sample import TopAndSample
from spec_bench.verify.base import NodeVerifier
from spec_bench.verify.path_rule import Traversal

Known = dict[tuple[str, str, int, int], Tensor]
"""Of one text: rule, how siblings are drawn, width and level, to the chances of every position."""


@dataclass(frozen=True)
class Text:
    """What the target wrote, and both laws at every position of it.

    Attributes:
        tokens: [T].
        p: [T, V] the target's law at each position, after warping.
        q: [T, V] the draft's.
        sure: [T] the draft's probability of the text's tokens, at temperature 1.
    """

    tokens: Tensor
    p: Tensor
    q: Tensor
    sure: Tensor


def why_not(config: DecoderConfig) -> str | None:
    """Why a decoder cannot be forecast; None where it can."""
    if config.drafter.kind != "language_model" or config.drafts != 1:
        return "the forecast is of one draft model that is asked token by token"
    if not isinstance(config.tree, Chain | Branching):
        return f"a {config.tree.name!r} tree depends on more than the text"
    if isinstance(config.verifier, Traversal):
        return None if isinstance(config.tree, Chain) else "traversal weighs whole trees"
    if not isinstance(config.verifier, NodeVerifier) or config.verifier.mark != "exact":
        return f"rule {config.verifier.name!r} is no exact node rule"
    return None


def widths_of(config: DecoderConfig) -> tuple[int, ...]:
    """Children per node on each level."""
    tree = config.tree
    return tree.widths if isinstance(tree, Branching) else (1,) * _depth(config)


def _depth(config: DecoderConfig) -> int:
    assert isinstance(config.tree, GrownTree)
    return config.tree.shape.depth


def calls_for(
    config: DecoderConfig,
    text: Text,
    settings: SamplingSettings,
    generator: torch.Generator,
    samples: int = 12,
    sets: Sets | None = None,
    known: Known | None = None,
) -> float:
    """Expected target calls of a decoder that writes a text.

    Args:
        config: the decoder.
        text: plain decoding's.
        settings: under which it was written.
        generator: of the children drawn.
        samples: S, for rules whose chances have no closed form.
        sets: in place of draws: every way the children may fall out.
        known: chances that decoders have in common, of this text; those computed here are added.

    Raises:
        ValueError: the decoder cannot be forecast, with the reason.
    """
    reason = why_not(config)
    if reason:
        raise ValueError(f"{config.title}: {reason}")
    depth = _depth(config)
    if isinstance(config.verifier, Traversal):
        at = text.tokens.unsqueeze(1)
        ratio = (text.q.gather(1, at).double() / text.p.gather(1, at).double()).squeeze(1)
        return expected_calls(_stopped(config, text, at_least_by_block(ratio, depth)))
    assert isinstance(config.verifier, NodeVerifier) and isinstance(config.tree, GrownTree)
    judge, widths = config.verifier.judge(depth), widths_of(config)
    siblings = config.tree.siblings(settings)
    levels, known = [], {} if known is None else known
    for level, width in enumerate(widths):
        # Fresh draws on every level: a product of estimates is unbiased if they are independent.
        key = repr(config.verifier), siblings, width, level
        if key in known:
            levels.append(known[key])
        elif siblings == "deterministic":
            levels.append(ranked_passing(judge, text.p, text.q, text.tokens, width))
        else:
            among = config.tree.sampled if isinstance(config.tree, TopAndSample) else 1
            children = sets or drawn(siblings, samples, generator, among)
            levels.append(passing(judge, text.p, text.q, text.tokens, width, children))
        known[key] = levels[-1]
    return expected_calls(_stopped(config, text, at_least_by_level(torch.stack(levels))))


def _stopped(config: DecoderConfig, text: Text, at_least: Tensor) -> Tensor:
    """P(accepted >= i | text) [L, T], of a chain that stops only where it still drafts.

    Where it stops follows from tokens that were passed, which are the text's tokens.
    """
    tree = config.tree
    if not isinstance(tree, DynamicChain):
        return at_least
    return at_least * drafted_on(text.sure, tree.depth, tree.confidence, tree.path)
