"""From a beam decoder's settings to the decoder; everything that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_search import BeamSearch
from spec_bench.decode.beam_step import BeamPlan
from spec_bench.decode.spec import tree_policy
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.records import Lossless

# Rule -> the tree policy that it goes with.
BEAM_RULES = {
    "beam_sampling": "beam_root",
    "beam_search": "beam_root",
    "beam_rejection": "beams",
}
_KEYS = {
    "beam_sampling": ("length_penalty",),
    "beam_search": ("length_penalty",),
    "beam_rejection": ("length_penalty", "one_cache"),
}


def is_beams(decoder: Mapping[str, Any]) -> bool:
    """Whether a decoder keeps several beams.

    Raises:
        ValueError: a beam rule with a tree that has no beams, or the other way round.
    """
    policy, rule = tree_policy(decoder), decoder["verifier"].get("rule")
    beams = policy in BEAM_RULES.values()
    if beams != (rule in BEAM_RULES) or (beams and BEAM_RULES[rule] != policy):
        fits = [known for known, goes_with in BEAM_RULES.items() if goes_with == policy]
        choices = " or ".join(fits) if fits else "a rule for single sequences"
        raise ValueError(
            f"decoder {decoder.get('name')!r}: tree policy {policy!r} goes with {choices}, "
            f"got rule {rule!r}"
        )
    return beams


def beam_plan(decoder: Mapping[str, Any], drafts: int) -> BeamPlan:
    """A beam decoder's numbers, checked.

    Args:
        decoder: its settings, the tree checked already.
        drafts: how many draft models it uses.

    Raises:
        ValueError: naming the value and what is allowed.
    """
    name, tree, verifier = decoder.get("name"), decoder["tree"], decoder["verifier"]
    rule = verifier["rule"]
    unknown = sorted(set(verifier) - {"rule", *_KEYS[rule]})
    if unknown:
        raise ValueError(
            f"decoder {name!r}: rule {rule!r} takes {', '.join(_KEYS[rule])}, got {unknown[0]!r}"
        )
    wanted = 1 if rule == "beam_rejection" else 0
    if drafts != wanted:
        raise ValueError(
            f"decoder {name!r}: rule {rule!r} uses {wanted} draft models, got {drafts}"
        )
    penalty, one_cache = verifier.get("length_penalty", 1.0), verifier.get("one_cache", False)
    if isinstance(penalty, bool) or not isinstance(penalty, int | float):
        raise ValueError(
            f"decoder {name!r}: verifier.length_penalty must be a number, got {penalty!r}"
        )
    if not isinstance(one_cache, bool):
        raise ValueError(
            f"decoder {name!r}: verifier.one_cache must be true or false, got {one_cache!r}"
        )
    least = tree.get("least", 1)
    if least > tree["width"]:
        raise ValueError(
            f"decoder {name!r}: tree.least must be at most tree.width = {tree['width']}, "
            f"got {least}"
        )
    return BeamPlan(
        tree["width"],
        tree.get("depth", 0),
        float(tree.get("threshold", 0.0)),
        least,
        one_cache,
        float(penalty),
    )


def build_beams(
    decoder: Mapping[str, Any],
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    settings: SamplingSettings,
    rows: int,
    pool: CachePool,
) -> BeamDecoder:
    """Builds a beam decoder over loaded models; arguments as ``build_decoder``'s."""
    kind = BeamSearch if decoder["verifier"]["rule"] == "beam_search" else BeamDecoder
    plan = beam_plan(decoder, len(drafts))
    # With one cache an iteration's beams have the beam law given its input beam, but choosing the
    # best of them to go on is no part of that law.
    lossless: Lossless = "approximate" if plan.one_cache else "exact_beam"
    return kind(decoder["name"], target, drafts, plan, settings, rows, lossless, pool=pool)
