"""What a verification rule is: a decoder's ``verifier`` block with its types, and its exactness.

``@rule("name", siblings=..., mark=...)`` decorates a node rule, a pure function whose keyword
parameters are the block's keys; or a frozen dataclass, where deciding takes more than one node at a
time. Either says for which ways of drawing siblings it is exact, and the audit checks just that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any, ClassVar, Protocol, get_type_hints

from spec_bench.core.tree import Siblings, TreeShape
from spec_bench.records.types import Lossless
from spec_bench.settings.fields import Share
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError
from spec_bench.verify.simultaneous import walk as walk_nodes
from spec_bench.verify.walk import NodeRule, ScoredTree, WalkResult

SiblingKinds = Mapping[Siblings, Mapping[str, Any]]


class Walk(Protocol):
    """Finds the accepted path of each row's tree by what a verifier ``judge``s by."""

    def __call__(self, scored: ScoredTree, rule: Any, /) -> WalkResult: ...


class Verifier:
    """A decoder's ``verifier`` block; a subclass is a frozen dataclass, its fields the keys."""

    name: ClassVar[str]  # of the rule
    # how siblings may be drawn for the mark to hold, each with the settings it then needs
    laws: ClassVar[SiblingKinds]
    declared: ClassVar[Lossless]  # how the output's distribution relates to the target's
    several_drafts: ClassVar[bool]  # whether each child of a node may come from a draft of its own
    library: ClassVar[str] = ""  # whose code decides; "": ours
    # the tree policies that it works with; None: all that its kind of verifier takes
    policies: ClassVar[tuple[str, ...] | None] = None

    @property
    def mark(self) -> Lossless:
        """How the output's distribution relates to the target's, with these settings."""
        return self.declared

    @property
    def siblings(self) -> tuple[Siblings, ...]:
        """How siblings may be drawn, with these settings."""
        return tuple(
            law
            for law, needed in self.laws.items()
            if all(getattr(self, key) == value for key, value in needed.items())
        )

    @property
    def described(self) -> str:
        """The rule and the settings that its exactness depends on, for messages."""
        hung = sorted({key for needed in self.laws.values() for key in needed})
        values = [f"{key}: {str(getattr(self, key)).lower()}" for key in hung]
        return " with ".join([self.name, *([", ".join(values)] if values else [])])


class TreeVerifier(Verifier):
    """Verifies the tree of a single sequence."""

    walk: ClassVar[Walk] = staticmethod(walk_nodes)  # how a path is found

    def judge(self, depth: int) -> Any:
        """Returns what the walk judges by, for trees of so many levels: a node rule, one per level,
        or whatever else it takes.
        """
        raise NotImplementedError

    def check(self, tree: str, shape: TreeShape, siblings: Siblings, drafts: int) -> None:
        """Refuses a tree, of a policy's name, that the rule does not fit, by a ValueError that
        names both; a rule that is not exact fits any. ``drafts``: models that share a node's
        children.
        """
        if self.mark != "exact":
            return
        single = siblings != "deterministic" and all(count == 1 for count in shape.children)
        if siblings not in self.siblings and not single:
            raise UsageError(
                f"tree policy {tree!r} draws siblings {siblings!r}, but rule {self.described!r} is "
                f"exact only for siblings drawn {' or '.join(repr(law) for law in self.siblings)}"
            )
        if drafts > 1 and not self.several_drafts:
            raise UsageError(
                f"rule {self.described!r} takes one draft model, drafter.drafts is {drafts}"
            )


class NodeVerifier(TreeVerifier):
    """A node rule with its parameters; ``@rule`` above a function makes a subclass of this."""

    function: ClassVar[Callable[..., Any]]  # the node rule

    def judge(self, depth: int) -> NodeRule:
        settings = {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]
        return partial(self.function, **settings) if settings else self.function


class BeamVerifier(Verifier):
    """Verifies the beams of several sequences at once."""

    policy: ClassVar[str]  # the tree policy that it works with
    models: ClassVar[int] = 0  # draft models that it uses
    searches: ClassVar[bool] = False  # whether the likeliest beams go on, instead of drawn ones
    length_penalty: float  # the answer is the beam with the largest log-likelihood / length^penalty
    one_cache: bool = False  # whether only the best output beam of an iteration goes on


def _declare(
    name: str,
    thing: Any,
    *,
    siblings: Sequence[Siblings] | SiblingKinds = (),
    mark: Lossless = "exact",
    several_drafts: bool = False,
) -> type[Verifier]:
    """Makes the entry of a node rule or a ``Verifier``.

    ``siblings`` are the ways of drawing them for which it is exact, or meant where it is not exact,
    with the settings that each needs, where they matter; ``mark`` says how the output's
    distribution relates to the target's, ``several_drafts`` whether ``q`` may be [B, C, V].
    """
    entry: type[Verifier] = thing if isinstance(thing, type) else _make_node_verifier(thing)
    entry.name = name
    entry.declared = mark
    entry.several_drafts = several_drafts
    entry.laws = siblings if isinstance(siblings, Mapping) else {law: {} for law in siblings}
    return entry


def _make_node_verifier(function: Callable[..., Any]) -> type[NodeVerifier]:
    """Returns a block whose keys are the function's parameters by keyword."""
    hints = get_type_hints(function, include_extras=True)
    for key, parameter in [*signature(function).parameters.items()][4:]:
        if parameter.kind is not Parameter.KEYWORD_ONLY or key not in hints:
            raise UsageError(
                f"{key} of rule {function.__name__} must stand behind a * and have a type: "
                f"{function.__name__}(p, q, tokens, valid, *, {key}: float = 0.5)"
            )
    keys: list[Any] = [
        (key, hints[key])
        if parameter.default is Parameter.empty
        else (key, hints[key], field(default=parameter.default))
        for key, parameter in signature(function).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    ]
    return make_dataclass(
        function.__name__,
        keys,
        bases=(NodeVerifier,),
        frozen=True,
        namespace={"function": staticmethod(function), "__doc__": function.__doc__},
    )


rule: Registry[type[Verifier]] = Registry(
    "rule", "spec_bench.rules", _declare, within="spec_bench.verify"
)
"""The rules by name; also the decorator that registers one."""


# Another engine's own decoding: only who drafts and how much is set here, the rest is its code.
#
# Such rows share our prompts and our clock, but have a mark of their own: their distributions were
# not enumerated.


@rule("transformers", mark="unaudited")
@dataclass(frozen=True)
class TransformersDecoding(Verifier):
    """``generate`` of transformers: alone, with an assistant, or with prompt lookup."""

    # the assistant stops after a token less probable than this (`assistant_confidence_threshold`;
    # the library's own default is 0.4)
    confidence: Share = 0.0

    library = "transformers"
    policies = ("root", "chain", "guessed")


@rule("server", mark="unaudited")
@dataclass(frozen=True)
class ServerDecoding(Verifier):
    """However a server decodes; that cannot be chosen here (``spec_bench.server``)."""

    library = "server"
    policies = ("root",)
