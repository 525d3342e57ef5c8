"""Which draft heads a decoder needs, and whether the pair's fit it and the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_bench.decode.spec import tree_policy
from spec_bench.draft.heads import MedusaHeads
from spec_bench.draft.heads.files import Heads
from spec_bench.engine.model import LanguageModel

# Kind of heads -> the tree policy that goes with them.
HEADS = {"medusa": "node_list", "redrafter": "head_beams"}


def heads_used(decoder: Mapping[str, Any]) -> str | None:
    """Which draft heads the decoder needs: ``medusa``, ``redrafter`` or None."""
    kind = decoder["drafter"].get("kind")
    return kind if kind in HEADS else None


def check_heads(decoder: Mapping[str, Any]) -> None:
    """Draft heads go with their own tree policy, and it with them.

    Raises:
        ValueError: naming both.
    """
    policy, kind = tree_policy(decoder), decoder["drafter"].get("kind")
    wanted = {made_for: head for head, made_for in HEADS.items()}.get(policy)
    if wanted != (kind if kind in HEADS else None):
        raise ValueError(
            f"decoder {decoder.get('name')!r}: drafter.kind {kind!r} does not go with tree policy "
            f"{policy!r}; heads and their policies: "
            + ", ".join(f"{head} with {made_for}" for head, made_for in HEADS.items())
        )


def fitting_heads(
    decoder: Mapping[str, Any], heads: Heads | None, target: LanguageModel, depth: int
) -> Heads | None:
    """The heads that the decoder uses, None if it uses none.

    Args:
        decoder: its settings.
        heads: the pair's heads of that kind.
        target: the model that they look at.
        depth: levels of the decoder's tree.

    Raises:
        ValueError: there are none, or they are another kind, another model's or too few.
    """
    kind, name = heads_used(decoder), decoder.get("name")
    if kind is None:
        return None
    if heads is None or heads.kind != kind:
        raise ValueError(
            f"decoder {name!r} uses {kind} heads, the pair has "
            + ("none" if heads is None else f"{heads.kind} heads")
            + f": name them as pair.heads.{kind}"
        )
    if heads.shape.hidden != target.hidden_size or heads.shape.vocab < target.vocab_size:
        raise ValueError(
            f"decoder {name!r}: the {kind} heads are for hidden states of {heads.shape.hidden} and "
            f"{heads.shape.vocab} tokens, the target has {target.hidden_size} and "
            f"{target.vocab_size}"
        )
    if isinstance(heads, MedusaHeads) and heads.shape.heads < depth:
        raise ValueError(
            f"decoder {name!r}: the tree is {depth} levels deep, there are "
            f"{heads.shape.heads} Medusa heads"
        )
    return heads
