"""Which kinds of drafter, tree policy and rule go together, whatever their settings are.

Each kind says what it goes with; this module requires both sides to agree.
"""

from __future__ import annotations

from spec_bench.draft.base import Drafter
from spec_bench.tree.base import GrownTree, Policy
from spec_bench.verify.base import BeamVerifier, Verifier


def goes_with(kind: type[Drafter], tree: type[Policy]) -> bool:
    """Whether a drafter and a tree policy go together."""
    welcome = kind.policies is None or tree.name in kind.policies
    return welcome and (tree.drafters is None or kind.kind in tree.drafters)


def verifies(verifier: type[Verifier], tree: type[Policy]) -> bool:
    """Whether a rule and a tree policy are for the same kind of thing."""
    if issubclass(verifier, BeamVerifier):
        return verifier.policy == tree.name
    if verifier.policies is not None:
        return tree.name in verifier.policies
    return issubclass(tree, GrownTree)
