"""Typed settings of a decoder: drafter x tree x verifier, checked together before a model is
loaded.

The settings are plain mappings as `conf/decoder` has them. Each block becomes a frozen dataclass
chosen by the block's kind (`drafter.kind`, `tree.policy`, `verifier.rule`), which checks its own
keys and declares the blocks that it works with. This module checks that the blocks fit together.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_search import BeamSearch
from spec_bench.decode.beam_step import BeamPlan
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.generate import (
    GenerateDecoder,
    describe_unsupported,
    make_assistance,
    refuse_unsupported_sampling,
    require_transformers_module,
)
from spec_bench.draft.base import Drafter, drafter
from spec_bench.draft.network import DraftHeads
from spec_bench.engine.cache import CachePool
from spec_bench.engine.model import LanguageModel
from spec_bench.settings.fields import format_value
from spec_bench.system.errors import UsageError
from spec_bench.tree.base import GrownTree, Policy, policy
from spec_bench.tree.node_list import NodeList
from spec_bench.verify.base import (
    BeamVerifier,
    ServerDecoding,
    TransformersDecoding,
    TreeVerifier,
    Verifier,
    rule,
)
from spec_bench.vocabulary.decoders import DISPLAY
from spec_bench.vocabulary.spec import parse_tree_spec


def are_compatible(drafter: type[Drafter], policy: type[Policy]) -> bool:
    """Returns whether a drafter works with a tree policy."""
    drafter_allows_policy = drafter.policies is None or policy.name in drafter.policies
    return drafter_allows_policy and (policy.drafters is None or drafter.kind in policy.drafters)


def can_verify(verifier: type[Verifier], policy: type[Policy]) -> bool:
    """Returns whether a rule can verify the trees of a policy."""
    if issubclass(verifier, BeamVerifier):
        return verifier.policy == policy.name
    if verifier.policies is not None:
        return policy.name in verifier.policies
    return issubclass(policy, GrownTree)


AnyDecoder = Decoder | BeamDecoder | GenerateDecoder
_KEYS = ("name", "drafter", "tree", "verifier", "tree_attention")


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's settings. Raises UsageError, naming both, if two blocks do not fit together."""

    name: str  # as in `conf/decoder`
    drafter: Drafter  # proposes tokens
    tree: Policy  # grows the tree
    verifier: Verifier  # accepts or rejects tokens
    # whether the target runs a tree as one row; if not, each path is a row
    tree_attention: bool = True

    def __post_init__(self) -> None:
        if fault := next(self._describe_misfits(), None):
            raise UsageError(f"{self.error_prefix}: {fault}")

    def _describe_misfits(self) -> Iterator[str]:
        """Yields a message for each pair of blocks that do not fit together."""
        kind = self.drafter.kind
        name = self.tree.name
        if not are_compatible(type(self.drafter), type(self.tree)):
            names = [
                p
                for p, candidate in policy.items()
                if are_compatible(type(self.drafter), candidate)
            ]
            yield (
                f"drafter.kind {kind!r} does not go with tree policy {name!r}; it goes with "
                f"{', '.join(names)}"
            )
        if not can_verify(type(self.verifier), type(self.tree)):
            rules = [r for r, candidate in rule.items() if can_verify(candidate, type(self.tree))]
            rule_name = self.verifier.name
            yield f"tree policy {name!r} goes with rule {', '.join(rules)}, got {rule_name!r}"
        if isinstance(self.verifier, BeamVerifier):
            if self.drafts != self.verifier.models:
                yield (
                    f"rule {self.verifier.name!r} uses {self.verifier.models} draft models, got "
                    f"{self.drafts}"
                )
        elif self.drafts > 1 and not self.tree.allows_several_drafts:
            yield (
                f"{self.drafts} drafts need tree.policy 'widths' with replacement: true, got "
                f"{name!r}"
            )
        widest = max(self.tree.shape.levels, default=1) if isinstance(self.tree, GrownTree) else 1
        if self.drafter.single and widest > 1:
            yield (
                f"drafter.kind {kind!r} proposes one chain, so tree.width must be 1, got {widest}"
            )
        if isinstance(self.verifier, TransformersDecoding):
            yield from describe_unsupported(self.drafter, self.tree, self.tree_attention)
        for key in self.tree.shared:
            value = getattr(self.tree, key)
            rule_value = getattr(self.verifier, key, None)
            if rule_value not in (None, value):
                tree_text = f"tree.{key} is {format_value(value)}"
                rule_text = f"verifier.{key} {format_value(rule_value)}"
                yield f"{tree_text} and {rule_text}; they must be the same"

    @property
    def error_prefix(self) -> str:
        """Prefix of error messages."""
        return f"decoder {self.name!r}"

    @property
    def spec(self) -> str:
        """The tree's shorthand, as in the results table."""
        return self.tree.spec

    @property
    def drafts(self) -> int:
        """Number of draft models."""
        return self.drafter.model_count

    @property
    def library(self) -> str:
        """The library that decodes; "" for spec_bench's own loop."""
        return self.verifier.library

    @property
    def heads(self) -> str | None:
        """The kind of draft heads; None if it uses none."""
        return self.drafter.kind if self.drafter.heads else None

    def limit_tree_depth(self, max_depth: int | None) -> GrownTree:
        """Cuts the tree to the ``max_depth`` levels that its drafter can guess; None means any
        depth. Raises UsageError if the tree is deeper and cannot be cut.
        """
        tree = self.tree
        assert isinstance(tree, GrownTree)
        if max_depth is None or max_depth >= tree.shape.depth:
            return tree
        if isinstance(tree, NodeList):
            return NodeList(tuple(path for path in tree.rank_paths if len(path) <= max_depth))
        raise UsageError(
            f"{self.error_prefix}: the tree is {tree.shape.depth} levels deep, its drafter reaches "
            f"{max_depth}: so many has {self.name}:{max_depth} or decoder.tree.depth={max_depth}"
        )

    def describe_tree_cut(self, decoder: AnyDecoder) -> str:
        """Describes how the heads' depth cuts the tree; "" if it is not cut."""
        if not isinstance(self.tree, NodeList) or decoder.depth >= self.tree.shape.depth:
            return ""
        return (
            f"the tree is cut to {decoder.nodes} of its {self.tree.max_draft_nodes} nodes, as the "
            f"heads guess {decoder.depth} tokens"
        )

    def refuse_unfit_siblings(self, settings: SamplingSettings) -> None:
        """Raises UsageError if the rule cannot verify siblings drawn as the tree draws them under
        these sampling settings.
        """
        with _name_decoder_in_errors(self.name):
            if isinstance(self.verifier, TransformersDecoding):
                refuse_unsupported_sampling(settings)
            if isinstance(self.tree, GrownTree) and isinstance(self.verifier, TreeVerifier):
                siblings = self.tree.siblings(settings)
                self.verifier.check(self.tree.name, self.tree.shape, siblings, self.drafts)

    def build(
        self,
        target: LanguageModel,
        drafts: Sequence[LanguageModel],
        settings: SamplingSettings,
        rows: int = 1,
        pool: CachePool | None = None,
        heads: DraftHeads | None = None,
    ) -> AnyDecoder:
        """Builds the decoder over loaded models: the target, as many of the drafts as it uses, and
        its draft heads, if any. At most ``rows`` requests decode together. Decoders that do not run
        at the same time may share a pool of caches.

        Raises UsageError as ``refuse_unfit_siblings`` does, and if there are too few drafts, if
        their vocabulary is not the target's, or if the heads are of another kind, fit another model
        or are too small.
        """
        self.refuse_unfit_siblings(settings)
        if isinstance(self.verifier, ServerDecoding):
            raise UsageError(
                f"{self.error_prefix}: a server decodes it, which goes with engine=server"
            )
        models = self._select_drafts(target, drafts)
        pool = pool or CachePool()
        mark = self.verifier.mark
        if isinstance(self.verifier, BeamVerifier):
            kind = BeamSearch if self.verifier.searches else BeamDecoder
            tree: Any = self.tree
            plan = BeamPlan(tree.width, length_penalty=self.verifier.length_penalty)
            if self.drafts:
                drafting = tree.depth, tree.threshold, tree.least, self.verifier.one_cache
                plan = BeamPlan(tree.width, *drafting, plan.length_penalty)
            return kind(self.name, target, models, plan, settings, rows, mark, pool=pool)
        assert isinstance(self.tree, GrownTree)
        if isinstance(self.verifier, TransformersDecoding):
            assistance = make_assistance(self.drafter, self.tree, self.verifier, models)
            calls = self.drafter.count_draft_calls(self.tree.shape.depth)
            module = require_transformers_module(self.error_prefix, target)
            return GenerateDecoder(
                self.name, module, models, assistance, settings, rows, mark, calls
            )
        assert isinstance(self.verifier, TreeVerifier)
        checked_heads = self._select_heads(target, heads)
        tree = self.limit_tree_depth(self.drafter.find_max_depth(checked_heads))
        return Decoder(
            self.name,
            target,
            models,
            self.drafter,
            tree,
            self.verifier.walk,
            self.verifier.judge(tree.shape.depth),
            settings,
            rows,
            lossless=mark,
            tree_attention=self.tree_attention,
            pool=pool,
            heads=checked_heads,
        )

    def _select_drafts(
        self,
        target: LanguageModel,
        drafts: Sequence[LanguageModel],
    ) -> Sequence[LanguageModel]:
        if self.drafter.has_own_model:
            return [self.drafter.make_own_model(target)]
        if len(drafts) < self.drafts:
            raise UsageError(
                f"{self.error_prefix} uses {self.drafts} drafts, the pair has {len(drafts)}"
            )
        used_drafts = drafts[: self.drafts]
        for draft in used_drafts:
            if draft.vocab_size != target.vocab_size:
                raise UsageError(
                    "target and draft must have the same vocabulary, got "
                    f"{target.vocab_size} and {draft.vocab_size} tokens"
                )
        return used_drafts

    def _select_heads(self, target: LanguageModel, heads: DraftHeads | None) -> DraftHeads | None:
        kind = self.heads
        if kind is None:
            return None
        if heads is None or heads.kind != kind:
            has = "none" if heads is None else f"{heads.kind} heads"
            raise UsageError(
                f"{self.error_prefix} uses {kind} heads, got {has}: set pair.heads.{kind} to a "
                "folder or hub id with such heads"
            )
        sizes = heads.shape
        if sizes.hidden != target.hidden_size or sizes.vocab < target.vocab_size:
            raise UsageError(
                f"{self.error_prefix}: the {kind} heads are for hidden states of {sizes.hidden} "
                f"and {sizes.vocab} tokens, the target has {target.hidden_size} and "
                f"{target.vocab_size}"
            )
        return heads


@contextmanager
def _name_decoder_in_errors(decoder: object) -> Iterator[None]:
    """Re-raises ValueErrors of the block as UsageErrors with the decoder's name."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"decoder {format_value(decoder)}: {error}") from None


def _read_block(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns a block of a decoder's settings. Raises UsageError if it is no mapping."""
    block = settings.get(key)
    if not isinstance(block, Mapping):
        raise UsageError(f"{key} must be a mapping, got {format_value(block)}")
    return block


def apply_tree_shorthand(settings: Mapping[str, Any], spec: str | int | None) -> dict[str, Any]:
    """Applies a tree's shorthand to a copy of a decoder's settings; None leaves the tree unchanged.
    Raises UsageError if the shorthand's form does not fit the tree policy; its numbers are checked
    later.
    """
    settings_copy = deepcopy(dict(settings))
    if spec is None:
        return settings_copy
    with _name_decoder_in_errors(settings.get("name")):
        name = _read_block(settings, "tree").get("policy")
        kind = policy.find(name, "tree.policy")
        text = str(spec).strip()
        shorthand = parse_tree_spec(text) if text else None
        sizes = kind.parse_spec(shorthand) if shorthand and shorthand.form in kind.forms else None
        if sizes is None:
            fault = f"spec {format_value(text)} does not fit its tree policy {name!r}"
            raise UsageError(f"{fault}, which takes {kind.takes}")
    settings_copy["tree"] = {**settings_copy["tree"], **sizes}
    return settings_copy


def read_decoder(
    block: Mapping[str, Any], settings: SamplingSettings | None = None
) -> DecoderConfig:
    """Parses a decoder's settings: ``name``, ``drafter``, ``tree``, ``verifier`` and, optionally,
    ``tree_attention``; ignores ``display``. Checks them under the sampling settings, temperature 1
    by default. Raises UsageError with the key, its value and the allowed values.
    """
    name = block.get("name")
    tree_attention = block.get("tree_attention", True)
    with _name_decoder_in_errors(name):
        if not isinstance(name, str) or not name:
            raise UsageError("name must be a text")
        for key in block:
            if key not in (*_KEYS, DISPLAY):
                shown_key = format_value(key, quoted=False)
                raise UsageError(
                    f"{shown_key} is no key of a decoder, which has {', '.join(_KEYS)}"
                )
        drafter_block, tree_block, verifier_block = (_read_block(block, key) for key in _KEYS[1:4])
        if not isinstance(tree_attention, bool):
            raise UsageError(
                f"tree_attention must be true or false, got {format_value(tree_attention)}"
            )
        tree = policy.build_from_block(tree_block, "policy", "tree").adapt_to_attention(
            tree_attention
        )
        drafter_config = drafter.build_from_block(drafter_block, "kind", "drafter")
        verifier_config = rule.build_from_block(verifier_block, "rule", "verifier")
    config = DecoderConfig(name, drafter_config, tree, verifier_config, tree_attention)
    config.refuse_unfit_siblings(settings or SamplingSettings())
    return config


def build_decoder(
    block: Mapping[str, Any],
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    settings: SamplingSettings,
    *args: Any,
    **kwargs: Any,
) -> AnyDecoder:
    """Reads settings and builds their decoder; see ``read_decoder`` and ``DecoderConfig.build``."""
    return read_decoder(block, settings).build(target, drafts, settings, *args, **kwargs)
