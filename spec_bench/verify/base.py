"""Base classes of verification rules: the types of a decoder's ``verifier`` block, and exactness.

``@rule("name", siblings=..., mark=...)`` decorates a node rule, which is a pure function with the
block's keys as keyword parameters, or a frozen dataclass that decides about several nodes at a
time. ``siblings`` are the ways of drawing siblings for which the rule is exact, and the audit
checks exactly these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any, ClassVar, Protocol, get_type_hints

from spec_bench.core.tree import Siblings, TreeShape
from spec_bench.records.types import Lossless
from spec_bench.settings.fields import Share
from spec_bench.settings.former import FormerMembers
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError
from spec_bench.verify.device_walk import walk_tree as walk_nodes
from spec_bench.verify.walk import NodeRule, ScoredTree, WalkResult

SiblingKinds = Mapping[Siblings, Mapping[str, Any]]


class Walk(Protocol):
    """Finds the accepted path of each row's tree by the rule from ``TreeVerifier.judge``."""

    def __call__(self, scored_tree: ScoredTree, rule: Any, /) -> WalkResult: ...


class Verifier(FormerMembers):
    """A decoder's ``verifier`` block. A subclass is a frozen dataclass with the block's keys as
    fields.
    """

    former_members: ClassVar = {
        "siblings": "exact_sibling_kinds",
        "description": "name_with_settings",
    }
    name: ClassVar[str]  # name of the rule
    # kinds of siblings for which the mark holds, with the settings that each needs
    laws: ClassVar[SiblingKinds]
    declared: ClassVar[Lossless]  # how the output's distribution relates to the target's
    several_drafts: ClassVar[bool]  # whether each child of a node may come from a draft of its own
    library: ClassVar[str] = ""  # library that decodes; "": spec_bench
    # tree policies that it works with; None: all that its kind of verifier takes
    policies: ClassVar[tuple[str, ...] | None] = None

    @property
    def mark(self) -> Lossless:
        """How the output's distribution relates to the target's, with these settings."""
        return self.declared

    @property
    def exact_sibling_kinds(self) -> tuple[Siblings, ...]:
        """Kinds of siblings for which the rule is exact with these settings."""
        return tuple(
            kind
            for kind, settings in self.laws.items()
            if all(getattr(self, key) == value for key, value in settings.items())
        )

    @property
    def name_with_settings(self) -> str:
        """The rule and the settings that its exactness depends on, for error messages."""
        setting_keys = sorted({key for settings in self.laws.values() for key in settings})
        values = [f"{key}: {str(getattr(self, key)).lower()}" for key in setting_keys]
        return " with ".join(filter(None, [self.name, ", ".join(values)]))


class TreeVerifier(Verifier):
    """Verifies the tree of a single sequence."""

    walk: ClassVar[Walk] = staticmethod(walk_nodes)  # finds the accepted path

    def judge(self, depth: int) -> Any:
        """Returns the rule for ``walk`` on trees of ``depth`` levels: a node rule, a node rule per
        level, or another object that the walk takes.
        """
        raise NotImplementedError

    def check(
        self,
        tree: str,
        shape: TreeShape,
        siblings: Siblings,
        drafts: int,
    ) -> None:
        """Raises UsageError if the rule is marked exact, but is not exact for siblings drawn as the
        policy ``tree`` draws them, or for children from ``drafts`` draft models.
        """
        if self.mark != "exact":
            return
        single = siblings != "deterministic" and all(count == 1 for count in shape.children)
        if siblings not in self.exact_sibling_kinds and not single:
            kinds = " or ".join(map(repr, self.exact_sibling_kinds))
            raise UsageError(
                f"tree policy {tree!r} draws siblings {siblings!r}, but rule "
                f"{self.name_with_settings!r} is exact only for siblings drawn {kinds}"
            )
        if drafts > 1 and not self.several_drafts:
            raise UsageError(
                f"rule {self.name_with_settings!r} takes one draft model, "
                f"drafter.drafts is {drafts}"
            )


class NodeVerifier(TreeVerifier):
    """A node rule with its parameters; ``@rule`` makes a subclass of it from a function."""

    function: ClassVar[Callable[..., Any]]  # the node rule

    def judge(self, depth: int) -> NodeRule:
        settings = {setting.name: getattr(self, setting.name) for setting in fields(self)}  # type: ignore[arg-type]
        return partial(self.function, **settings) if settings else self.function


class BeamVerifier(Verifier):
    """Verifies the beams of several sequences at once."""

    policy: ClassVar[str]  # the tree policy that it works with
    models: ClassVar[int] = 0  # draft models that it uses
    searches: ClassVar[bool] = False  # whether the likeliest beams continue instead of drawn ones
    length_penalty: float  # the answer is the beam with the largest log-likelihood / length^penalty
    one_cache: bool = False  # whether only the best output beam of an iteration continues


def _make_verifier_class(
    name: str,
    definition: Any,
    *,
    siblings: Sequence[Siblings] | SiblingKinds = (),
    mark: Lossless = "exact",
    several_drafts: bool = False,
) -> type[Verifier]:
    """Makes the class that is registered for a node rule or a ``Verifier``.

    ``siblings`` are the kinds of siblings for which the rule is exact (or meant, if it is not
    exact), with the settings that each kind needs. ``mark`` is how the output's distribution
    relates to the target's; ``several_drafts`` is whether ``q`` may be [B, C, V].
    """
    entry: type[Verifier] = (
        definition if isinstance(definition, type) else _make_node_verifier(definition)
    )
    entry.name = name
    entry.declared = mark
    entry.several_drafts = several_drafts
    entry.laws = siblings if isinstance(siblings, Mapping) else {kind: {} for kind in siblings}
    return entry


def _make_node_verifier(function: Callable[..., Any]) -> type[NodeVerifier]:
    """Makes a verifier class whose fields are the function's keyword-only parameters."""
    hints = get_type_hints(function, include_extras=True)
    keys: list[Any] = []
    for key, parameter in [*signature(function).parameters.items()][4:]:
        if parameter.kind is not Parameter.KEYWORD_ONLY or key not in hints:
            raise UsageError(
                f"{key} of rule {function.__name__} must stand behind a * and have a type: "
                f"{function.__name__}(p, q, tokens, valid, *, {key}: float = 0.5)"
            )
        has_default = parameter.default is not Parameter.empty
        keys.append((key, hints[key], *[field(default=parameter.default)] * has_default))
    return make_dataclass(
        function.__name__,
        keys,
        bases=(NodeVerifier,),
        frozen=True,
        namespace={"function": staticmethod(function), "__doc__": function.__doc__},
    )


rule: Registry[type[Verifier]] = Registry(
    "rule",
    "spec_bench.rules",
    _make_verifier_class,
    within="spec_bench.verify",
)
"""The rules by name; also the decorator that registers one."""


@rule("transformers", mark="unaudited")
@dataclass(frozen=True)
class TransformersDecoding(Verifier):
    """``generate`` of transformers: plain, with an assistant, or with prompt lookup.

    Only the drafter and the draft length are set here. Its rows have the same prompts and the same
    clock as ours; the mark says that its distributions were not checked by enumeration.
    """

    # the assistant stops after a token less probable than this (`assistant_confidence_threshold`;
    # the library's own default is 0.4)
    confidence: Share = 0.0

    library = "transformers"
    policies = ("root", "chain", "guessed")


@rule("server", mark="unaudited")
@dataclass(frozen=True)
class ServerDecoding(Verifier):
    """Decoding by a server, which chooses the method itself (``spec_bench.server``)."""

    library = "server"
    policies = ("root",)
