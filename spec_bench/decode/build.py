"""From a decoder's settings (plain mappings, as YAML has them) to a ``Decoder``.

Everything that can be refused is refused here, before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.build_beams import beam_plan, build_beams, is_beams
from spec_bench.decode.build_heads import HEADS, check_heads, fitting_heads
from spec_bench.decode.build_heads import heads_used as heads_used
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.simulation import SIMULATED, simulated_rules
from spec_bench.decode.spec import check_tree, tree_policy
from spec_bench.decode.spec import resolve_spec as resolve_spec
from spec_bench.decode.spec import spec_of as spec_of
from spec_bench.draft.heads.files import Heads
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.policy.base import Policy, Siblings
from spec_bench.policy.head_beams import HeadBeams
from spec_bench.policy.iid_paths import IidPaths
from spec_bench.policy.node_list import NodeList, node_lists
from spec_bench.policy.stochastic_beam import StochasticBeam
from spec_bench.policy.widths import Widths
from spec_bench.records import Lossless
from spec_bench.verify.rules import NodeRule, k_seq, ranked_list, recursive_rejection
from spec_bench.verify.typical import TypicalAcceptance

ACCEPTED_SIBLINGS: dict[str, tuple[Siblings, ...]] = {
    "recursive_rejection": ("without_replacement", "deterministic"),
    "recursive_rejection with replacement": ("iid",),
    "k_seq": ("iid",),
    "naive": ("iid", "without_replacement", "deterministic"),
    SIMULATED: ("iid", "without_replacement", "deterministic"),
}
# Every other rule is exact.
LOSSLESS: dict[str, Lossless] = {SIMULATED: "simulated", "typical": "approximate"}
AnyDecoder = Decoder | BeamDecoder
DRAFTERS = ("none", "language_model", *HEADS)


def validate_decoder(decoder: Mapping[str, Any], settings: SamplingSettings | None = None) -> None:
    """Checks a decoder's settings without loading anything.

    Args:
        decoder: keys ``name``, ``drafter``, ``tree``, ``verifier``, and ``tree_attention`` where it
            is off.
        settings: sampling settings, where they are known.

    Raises:
        ValueError: naming the offending value and the choices; also where the verifier's rule does
            not fit the way the tree draws siblings.
    """
    name = decoder.get("name")
    for key in ("drafter", "tree", "verifier"):
        if not isinstance(decoder.get(key), Mapping):
            raise ValueError(f"decoder {name!r} lacks its {key!r} block")
    check_tree(decoder)
    drafts = drafts_used(decoder)
    if is_beams(decoder):
        beam_plan(decoder, drafts)
        return
    policy = build_policy(decoder, settings or SamplingSettings())
    check_heads(decoder)
    if (decoder["drafter"]["kind"] == "none") != (policy.shape.depth == 0):
        raise ValueError(
            f"decoder {name!r}: drafter.kind 'none' goes with tree.policy 'root' and only with it, "
            f"got {decoder['drafter'].get('kind')!r} with {tree_policy(decoder)!r}"
        )
    build_rule(decoder, policy)
    uses_tree_attention(decoder, policy)
    if drafts > 1 and not (tree_policy(decoder) == "widths" and policy.siblings == "iid"):
        raise ValueError(
            f"decoder {name!r}: {drafts} drafts need tree.policy 'widths' with replacement: true, "
            f"got {tree_policy(decoder)!r} with siblings drawn {policy.siblings!r}"
        )


def uses_tree_attention(decoder: Mapping[str, Any], policy: Policy) -> bool:
    """Whether the target runs a tree as one row (the default) or each path as its own.

    Raises:
        ValueError: for a value that is neither true nor false, or a tree whose paths differ from
            iteration to iteration.
    """
    wanted = decoder.get("tree_attention", True)
    if not isinstance(wanted, bool):
        raise ValueError(
            f"decoder {decoder.get('name')!r}: tree_attention must be true or false, got {wanted!r}"
        )
    if not wanted and not policy.fixed_parents:
        raise ValueError(
            f"decoder {decoder.get('name')!r}: tree_attention: false needs a tree of fixed paths "
            f"(chain, widths, iid_paths), got {tree_policy(decoder)!r}"
        )
    return wanted


def drafts_used(decoder: Mapping[str, Any]) -> int:
    """How many draft models the decoder needs.

    Raises:
        ValueError: for an unknown drafter kind or a count below 1.
    """
    drafter = decoder["drafter"]
    kind = drafter.get("kind")
    if kind not in DRAFTERS:
        raise ValueError(
            f"decoder {decoder.get('name')!r}: drafter.kind must be one of "
            f"{', '.join(DRAFTERS)}, got {kind!r}"
        )
    if kind == "none" or kind in HEADS:
        return 0
    drafts = drafter.get("drafts", 1)
    if isinstance(drafts, bool) or not isinstance(drafts, int) or drafts < 1:
        raise ValueError(
            f"decoder {decoder.get('name')!r}: drafter.drafts must be a whole number of at least "
            f"1, got {drafts!r}"
        )
    return drafts


def build_policy(decoder: Mapping[str, Any], settings: SamplingSettings) -> Policy:
    """The tree policy; at draft temperature 0 sampling without replacement becomes the draft's
    best tokens in rank order, and i.i.d. children all become its best token.
    """
    tree = decoder["tree"]
    distinct: Siblings = (
        "deterministic" if settings.for_draft().temperature == 0 else "without_replacement"
    )
    match tree_policy(decoder):
        case "root":
            return Widths((), "iid")
        case "chain":
            return Widths((1,) * tree["depth"], "iid")
        case "widths":
            return Widths(tuple(tree["widths"]), "iid" if tree["replacement"] else distinct)
        case "iid_paths":
            return IidPaths(tree["paths"], tree["depth"])
        case "node_list":
            nodes = tree["nodes"]
            return NodeList(node_lists()[nodes] if isinstance(nodes, str) else nodes)
        case "head_beams":
            return HeadBeams(tree["width"], tree["depth"], decoder.get("tree_attention", True))
        case _:
            return StochasticBeam(tree["width"], tree["depth"], distinct)


def build_rule(
    decoder: Mapping[str, Any], policy: Policy
) -> NodeRule | tuple[NodeRule, ...] | TypicalAcceptance:
    """The node rule, if it fits the policy; with stated acceptance one rule per level.

    Raises:
        ValueError: for an unknown rule, or one that assumes siblings drawn in another way.
    """
    verifier = decoder["verifier"]
    if verifier.get("rule") == "typical":
        values = {key: value for key, value in verifier.items() if key != "rule"}
        unknown = sorted(set(values) - {"epsilon", "delta"})
        if unknown:
            raise ValueError(
                f"decoder {decoder.get('name')!r}: rule 'typical' takes epsilon and delta, "
                f"got {unknown[0]!r}"
            )
        return TypicalAcceptance(**values)
    if verifier.get("rule") != SIMULATED:
        return _node_rule(decoder, policy)
    computed = verifier.get("computed")
    if computed is None:
        return simulated_rules(decoder, policy.shape.depth, None)
    return simulated_rules(
        decoder,
        policy.shape.depth,
        _node_rule({**decoder, "verifier": computed}, policy),
    )


def _node_rule(decoder: Mapping[str, Any], policy: Policy) -> NodeRule:
    """A rule that decides for itself; see ``build_rule``."""
    name, verifier = decoder.get("name"), decoder["verifier"]
    rule, replacement = verifier.get("rule"), verifier.get("replacement", False)
    label = (
        "recursive_rejection with replacement"
        if rule == "recursive_rejection" and replacement
        else rule
    )
    if rule not in ("recursive_rejection", "k_seq", "naive"):
        raise ValueError(
            f"decoder {name!r}: verifier.rule must be one of recursive_rejection, k_seq, naive, "
            f"typical, {SIMULATED}, got {rule!r}"
        )
    single_children = all(count == 1 for count in policy.shape.children)
    if policy.siblings not in ACCEPTED_SIBLINGS[label] and not single_children:
        raise ValueError(
            f"decoder {name!r}: tree policy {tree_policy(decoder)!r} draws siblings "
            f"{policy.siblings!r}, but rule {label!r} is exact only for siblings drawn "
            f"{' or '.join(repr(s) for s in ACCEPTED_SIBLINGS[label])}"
        )
    if rule == "k_seq":
        return k_seq
    if rule == "naive":
        return ranked_list
    return partial(recursive_rejection, replacement=replacement)


def build_decoder(
    decoder: Mapping[str, Any],
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    settings: SamplingSettings,
    rows: int = 1,
    pool: CachePool | None = None,
    heads: Heads | None = None,
) -> AnyDecoder:
    """Builds a decoder over loaded models.

    Args:
        decoder: keys ``name``, ``drafter``, ``tree``, ``verifier``.
        target: the target.
        drafts: at least as many drafts as the decoder uses; the first ones are taken.
        settings: sampling settings.
        rows: most requests that decode together.
        pool: caches to share with other decoders that do not run at the same time.
        heads: the draft heads, where the decoder uses some.

    Returns:
        The decoder.

    Raises:
        ValueError: as ``validate_decoder``; also if there are too few drafts or their vocabulary
            differs from the target's.
    """
    validate_decoder(decoder, settings)
    count = drafts_used(decoder)
    if len(drafts) < count:
        raise ValueError(
            f"decoder {decoder['name']!r} uses {count} drafts, the pair has {len(drafts)}"
        )
    for draft in drafts[:count]:
        if draft.vocab_size != target.vocab_size:
            raise ValueError(
                f"target and draft must have the same vocabulary, got {target.vocab_size} and "
                f"{draft.vocab_size} tokens"
            )
    if is_beams(decoder):
        return build_beams(decoder, target, drafts[:count], settings, rows, pool or CachePool())
    policy = build_policy(decoder, settings)
    rule = build_rule(decoder, policy)
    heads = fitting_heads(decoder, heads, target, policy.shape.depth)
    return Decoder(
        decoder["name"],
        target,
        drafts[:count],
        policy,
        rule,
        settings,
        rows,
        lossless=LOSSLESS.get(decoder["verifier"]["rule"], "exact"),
        tree_attention=uses_tree_attention(decoder, policy),
        pool=pool or CachePool(),
        heads=heads,
    )
