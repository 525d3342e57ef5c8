"""A decoder with its types: drafter x tree x verifier, read from settings and checked as a whole.

The settings are plain mappings as `conf/decoder` has them. Each block becomes a frozen dataclass
chosen by the block's kind (`drafter.kind`, `tree.policy`, `verifier.rule`) that knows everything
about itself and says what it goes with; here is only what two blocks must agree on. Everything that
can be refused is refused here, before a model is loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder, BeamSearch
from spec_bench.decode.beam_step import BeamPlan
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.generate import (
    GenerateDecoder,
    check_sampling,
    find_unsupported,
    make_aid,
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
from spec_bench.vocabulary.spec import parse


def is_compatible(kind: type[Drafter], tree: type[Policy]) -> bool:
    """Returns whether a drafter and a tree policy go together."""
    welcome = kind.policies is None or tree.name in kind.policies
    return welcome and (tree.drafters is None or kind.kind in tree.drafters)


def can_verify(verifier: type[Verifier], tree: type[Policy]) -> bool:
    """Returns whether a rule and a tree policy are for the same kind of thing."""
    if issubclass(verifier, BeamVerifier):
        return verifier.policy == tree.name
    if verifier.policies is not None:
        return tree.name in verifier.policies
    return issubclass(tree, GrownTree)


AnyDecoder = Decoder | BeamDecoder | GenerateDecoder
_KEYS = ("name", "drafter", "tree", "verifier", "tree_attention")


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's settings, each block checked by itself and with the others; where two do not fit
    together a ValueError of one line names both.
    """

    name: str  # as in `conf/decoder`
    drafter: Drafter  # who proposes
    tree: Policy  # how the tree grows
    verifier: Verifier  # who decides
    # whether the target runs a tree as one row, or each path as its own
    tree_attention: bool = True

    def __post_init__(self) -> None:
        if fault := next(self._faults(), None):
            raise UsageError(f"{self.title}: {fault}")

    def _faults(self) -> Iterator[str]:
        """Yields what does not fit together."""
        kind = self.drafter.kind
        name = self.tree.name
        if not is_compatible(type(self.drafter), type(self.tree)):
            others = [p for p, known in policy.items() if is_compatible(type(self.drafter), known)]
            yield (
                f"drafter.kind {kind!r} does not go with tree policy {name!r}; it goes with "
                f"{', '.join(others)}"
            )
        if not can_verify(type(self.verifier), type(self.tree)):
            rules = [r for r, known in rule.items() if can_verify(known, type(self.tree))]
            own = self.verifier.name
            yield f"tree policy {name!r} goes with rule {', '.join(rules)}, got {own!r}"
        if isinstance(self.verifier, BeamVerifier):
            if self.drafts != self.verifier.models:
                yield (
                    f"rule {self.verifier.name!r} uses {self.verifier.models} draft models, got "
                    f"{self.drafts}"
                )
        elif self.drafts > 1 and not self.tree.several_drafts:
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
            yield from find_unsupported(self.drafter, self.tree, self.tree_attention)
        for key in self.tree.shared:
            value = getattr(self.tree, key)
            other = getattr(self.verifier, key, None)
            if other not in (None, value):
                said = (
                    f"tree.{key} is {format_value(value)} and verifier.{key} {format_value(other)}"
                )
                yield f"{said}; they must be the same"

    @property
    def title(self) -> str:
        """What stands before the key in messages."""
        return f"decoder {self.name!r}"

    @property
    def spec(self) -> str:
        """The tree's shorthand, as in the results table."""
        return self.tree.spec

    @property
    def drafts(self) -> int:
        """Draft models that it uses."""
        return self.drafter.models

    @property
    def library(self) -> str:
        """Whose code decodes; "": ours."""
        return self.verifier.library

    @property
    def heads(self) -> str | None:
        """The kind of draft heads that it uses, if any."""
        return self.drafter.kind if self.drafter.heads else None

    def limit_tree_depth(self, reach: int | None) -> GrownTree:
        """Returns the tree for a drafter that guesses so many levels, None for any number; a
        ValueError if it is deeper and cannot be cut.
        """
        tree = self.tree
        assert isinstance(tree, GrownTree)
        if reach is None or reach >= tree.shape.depth:
            return tree
        if isinstance(tree, NodeList):
            return NodeList(tuple(path for path in tree.paths if len(path) <= reach))
        raise UsageError(
            f"{self.title}: the tree is {tree.shape.depth} levels deep, its drafter reaches "
            f"{reach}: so many has {self.name}:{reach} or decoder.tree.depth={reach}"
        )

    def describe_cut(self, decoder: AnyDecoder) -> str:
        """Says how much of the tree a decoder uses whose heads guess fewer levels; else ""."""
        if not isinstance(self.tree, NodeList) or decoder.depth >= self.tree.shape.depth:
            return ""
        return (
            f"the tree is cut to {decoder.nodes} of its {self.tree.node_count} nodes, as the heads "
            f"guess {decoder.depth} tokens"
        )

    def check_under(self, settings: SamplingSettings) -> None:
        """Checks that the rule fits how the tree draws siblings under sampling settings; a
        ValueError names both if not.
        """
        with _name_decoder_in_errors(self.name):
            if isinstance(self.verifier, TransformersDecoding):
                check_sampling(settings)
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
        """Builds the decoder over loaded models: the target, the first of the drafts and, if it
        uses any, draft heads. ``rows`` requests at most decode together; decoders that do not run
        at the same time share a pool of caches.

        A ValueError as ``check_under``'s; also if there are too few drafts, their vocabulary is not
        the target's, or the heads are another kind, another model's or too few.
        """
        self.check_under(settings)
        if isinstance(self.verifier, ServerDecoding):
            raise UsageError(f"{self.title}: a server decodes it, which goes with engine=server")
        models = self._check_drafts(target, drafts)
        pool = pool or CachePool()
        if isinstance(self.verifier, BeamVerifier):
            kind = BeamSearch if self.verifier.searches else BeamDecoder
            tree: Any = self.tree
            penalty = self.verifier.length_penalty
            plan = BeamPlan(tree.width)
            if self.drafts:
                drafting = tree.width, tree.depth, tree.threshold, tree.least
                plan = BeamPlan(*drafting, self.verifier.one_cache)
            plan = replace(plan, length_penalty=penalty)
            mark = self.verifier.mark
            return kind(self.name, target, models, plan, settings, rows, mark, pool=pool)
        assert isinstance(self.tree, GrownTree)
        if isinstance(self.verifier, TransformersDecoding):
            aid = make_aid(self.drafter, self.tree, self.verifier, models)
            calls = self.drafter.calls(self.tree.shape.depth)
            mark = self.verifier.mark
            module = require_transformers_module(self.title, target)
            return GenerateDecoder(self.name, module, models, aid, settings, rows, mark, calls)
        assert isinstance(self.verifier, TreeVerifier)
        fitting = self._check_heads(target, heads)
        tree = self.limit_tree_depth(self.drafter.reach(fitting))
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
            lossless=self.verifier.mark,
            tree_attention=self.tree_attention,
            pool=pool,
            heads=fitting,
        )

    def _check_drafts(
        self, target: LanguageModel, drafts: Sequence[LanguageModel]
    ) -> Sequence[LanguageModel]:
        if self.drafter.own_model:
            return [self.drafter.model(target)]
        if len(drafts) < self.drafts:
            raise UsageError(f"{self.title} uses {self.drafts} drafts, the pair has {len(drafts)}")
        for draft in drafts[: self.drafts]:
            if draft.vocab_size != target.vocab_size:
                raise UsageError(
                    "target and draft must have the same vocabulary, got "
                    f"{target.vocab_size} and {draft.vocab_size} tokens"
                )
        return drafts[: self.drafts]

    def _check_heads(self, target: LanguageModel, heads: DraftHeads | None) -> DraftHeads | None:
        kind = self.heads
        if kind is None:
            return None
        if heads is None or heads.kind != kind:
            has = "none" if heads is None else f"{heads.kind} heads"
            raise UsageError(
                f"{self.title} uses {kind} heads, got {has}: set pair.heads.{kind} to a folder "
                "or hub id with such heads"
            )
        sizes = heads.shape
        if sizes.hidden != target.hidden_size or sizes.vocab < target.vocab_size:
            raise UsageError(
                f"{self.title}: the {kind} heads are for hidden states of {sizes.hidden} and "
                f"{sizes.vocab} tokens, the target has {target.hidden_size} and "
                f"{target.vocab_size}"
            )
        return heads


@contextmanager
def _name_decoder_in_errors(decoder: object) -> Iterator[None]:
    """Names a decoder in the ValueErrors within."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"decoder {format_value(decoder)}: {error}") from None


def _get_block(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns one block of a decoder's settings; a ValueError if it is no mapping."""
    block = given.get(key)
    if not isinstance(block, Mapping):
        raise UsageError(f"{key} must be a mapping, got {format_value(block)}")
    return block


def resolve_spec(given: Mapping[str, Any], spec: str | int | None) -> dict[str, Any]:
    """Writes a shorthand into a copy of a decoder's settings; None keeps the tree as it is. The
    numbers' values are not checked here; a ValueError if the shorthand does not fit the tree
    policy, naming the form that it takes.
    """
    resolved = deepcopy(dict(given))
    if spec is None:
        return resolved
    with _name_decoder_in_errors(given.get("name")):
        name = _get_block(given, "tree").get("policy")
        kind = policy.find(name, "tree.policy")
        text = str(spec).strip()
        known = parse(text) if text else None
        sizes = kind.of_spec(known) if known and known.form in kind.forms else None
        if sizes is None:
            own = f"spec {format_value(text)} does not fit its tree policy {name!r}"
            raise UsageError(f"{own}, which takes {kind.takes}")
    resolved["tree"] = {**resolved["tree"], **sizes}
    return resolved


def read_decoder(
    given: Mapping[str, Any], settings: SamplingSettings | None = None
) -> DecoderConfig:
    """Reads a decoder with its types from its settings: keys ``name``, ``drafter``, ``tree``,
    ``verifier``, and ``tree_attention`` if it is off; ``display`` is for people and not read.
    Sampling settings are those of temperature 1 if unknown.

    A ValueError of one line names the key, its value and what is allowed.
    """
    name = given.get("name")
    whole = given.get("tree_attention", True)
    with _name_decoder_in_errors(name):
        if not isinstance(name, str) or not name:
            raise UsageError("name must be a text")
        for key in given:
            if key not in (*_KEYS, DISPLAY):
                own = format_value(key, quoted=False)
                raise UsageError(f"{own} is no key of a decoder, which has {', '.join(_KEYS)}")
        proposing, growing, deciding = (_get_block(given, key) for key in _KEYS[1:4])
        if not isinstance(whole, bool):
            raise UsageError(f"tree_attention must be true or false, got {format_value(whole)}")
        tree = policy.read(growing, "policy", "tree").under(whole)
        proposes = drafter.read(proposing, "kind", "drafter")
        decides = rule.read(deciding, "rule", "verifier")
    config = DecoderConfig(name, proposes, tree, decides, whole)
    config.check_under(settings or SamplingSettings())
    return config


def build_decoder(
    given: Mapping[str, Any],
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    settings: SamplingSettings,
    *more: Any,
    **named: Any,
) -> AnyDecoder:
    """Reads settings and builds their decoder; see ``read_decoder`` and ``DecoderConfig.build``."""
    return read_decoder(given, settings).build(target, drafts, settings, *more, **named)
