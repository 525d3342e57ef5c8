"""A decoder's blocks: each is read by the kind that it names, the tree also by its shorthand.

Knows that a block is a mapping and that a registry holds its kinds; nothing about what two blocks
must agree on, which is ``config``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from spec_bench.settings.fields import read, shown
from spec_bench.settings.registry import Registry
from spec_bench.tree.base import Policy, policy
from spec_bench.vocabulary.spec import parse


def block_of(given: Mapping[str, Any], key: str, title: str) -> Mapping[str, Any]:
    """One block of a decoder's settings.

    Raises:
        ValueError: it is missing, or not a mapping.
    """
    block = given.get(key)
    if not isinstance(block, Mapping):
        raise ValueError(f"{title}: {key} must be a mapping, got {shown(block)}")
    return block


def read_block(registry: Registry[Any], block: Mapping[str, Any], kind: str, where: str) -> Any:
    """A block as the dataclass registered under the kind that it names.

    Raises:
        ValueError: an unknown kind, or fields that are not its own or out of range.
    """
    name = block.get(kind)
    registered = registry.find(name, f"{where}.{kind}")
    settings = {key: value for key, value in block.items() if key != kind}
    return read(registered, settings, where, f"{registry.noun} {name!r}")


def read_tree(given: Mapping[str, Any]) -> Policy:
    """The tree of a decoder's settings.

    Raises:
        ValueError: in one line that names the key, its value and what is allowed.
    """
    title = f"decoder {shown(given.get('name'))}"
    return read_block(policy, block_of(given, "tree", title), "policy", f"{title}: tree")


def resolve_spec(given: Mapping[str, Any], spec: str | int | None) -> dict[str, Any]:
    """Writes a shorthand into a copy of a decoder's settings.

    Args:
        given: a decoder's settings.
        spec: the shorthand; None keeps the tree as it is.

    Returns:
        The settings with the tree's numbers set; their values are not checked here.

    Raises:
        ValueError: the shorthand does not fit the tree policy, naming the form that it takes.
    """
    resolved = deepcopy(dict(given))
    if spec is None:
        return resolved
    title = f"decoder {shown(given.get('name'))}"
    name = block_of(given, "tree", title).get("policy")
    kind = policy.find(name, f"{title}: tree.policy")
    text = str(spec).strip()
    known = parse(text) if text else None
    sizes = kind.of_spec(known) if known and known.form in kind.forms else None
    if sizes is None:
        raise ValueError(
            f"{title}: spec {shown(text)} does not fit its tree policy {name!r}, which takes "
            f"{kind.takes}"
        )
    resolved["tree"] = {**resolved["tree"], **sizes}
    return resolved
