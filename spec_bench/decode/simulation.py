"""A decoder's stated acceptance: checks of the setting and one rule per level of the tree."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from spec_bench.verify.rules import NodeRule
from spec_bench.verify.simulated import simulated

SIMULATED = "simulated"
_KEYS = ("rule", "acceptance", "computed")


def acceptance_by_depth(decoder: Mapping[str, Any], depth: int) -> tuple[float, ...]:
    """The stated acceptance of each level above the leaves.

    Args:
        decoder: its ``verifier.acceptance`` is a number for all levels, or a list of at least
            ``depth`` numbers of which the first is the root's.
        depth: L.

    Returns:
        L probabilities.

    Raises:
        ValueError: naming the value and what is allowed.
    """
    name, verifier = decoder.get("name"), decoder["verifier"]
    if unknown := sorted(set(verifier) - set(_KEYS)):
        raise ValueError(
            f"decoder {name!r}: verifier.{unknown[0]} does not belong to rule 'simulated', "
            f"which has {', '.join(_KEYS[1:])}"
        )
    stated = verifier.get("acceptance")
    values = list(stated) if isinstance(stated, list | tuple) else [stated] * depth
    for value in [*values, *([stated] if not values else [])]:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            raise ValueError(
                f"decoder {name!r}: simulated acceptance must be a number from 0 to 1, or a list "
                f"of one per depth, got {stated!r}"
            )
    if len(values) < depth:
        raise ValueError(
            f"decoder {name!r}: simulated acceptance {stated!r} has {len(values)} values, the tree "
            f"has depth {depth}"
        )
    return tuple(float(value) for value in values[:depth])


def simulated_rules(
    decoder: Mapping[str, Any], depth: int, computed: NodeRule | None
) -> tuple[NodeRule, ...]:
    """One rule per level above the leaves.

    Args:
        decoder: with ``verifier.acceptance``.
        depth: L.
        computed: a rule whose work is done all the same; see ``simulated``.

    Raises:
        ValueError: as ``acceptance_by_depth``.
    """
    return tuple(
        partial(simulated, acceptance=acceptance, computed=computed)
        for acceptance in acceptance_by_depth(decoder, depth)
    )
