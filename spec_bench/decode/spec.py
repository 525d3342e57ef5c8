"""A decoder's tree in words: the papers' shorthand (``3``, ``4x3``, ``2-2-1``, ``4x2@0.9``) and its
checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from spec_bench.policy.node_list import NodeList, node_lists

SPEC_FORMS = {
    "root": "'-' (no tree)",
    "chain": "a draft length such as 3",
    "widths": "children per level such as 2-2-1",
    "iid_paths": "KxL: K paths of length L, such as 4x3",
    "stochastic_beam": "KxL: beam width K, length L, such as 4x3",
    "node_list": "the name of a node list, such as mc_sim_7b_63",
    "head_beams": "WxL: W beams of L tokens, such as 8x5",
    "beam_root": "a number of beams such as 4",
    "beams": "WxL@t: W draft beams, L layers, threshold t, such as 4x2@0.9",
}
TREE_KEYS = {
    "root": (),
    "chain": ("depth",),
    "widths": ("widths", "replacement"),
    "iid_paths": ("paths", "depth"),
    "stochastic_beam": ("width", "depth"),
    "node_list": ("nodes",),
    "head_beams": ("width", "depth"),
    "beam_root": ("width",),
    "beams": ("width", "depth", "threshold", "least"),
}


def tree_policy(decoder: Mapping[str, Any]) -> str:
    """The name of the decoder's tree policy.

    Raises:
        ValueError: if there is none or it is unknown, naming the choices.
    """
    policy = decoder.get("tree", {}).get("policy")
    if policy not in SPEC_FORMS:
        raise ValueError(
            f"decoder {decoder.get('name')!r}: tree.policy must be one of "
            f"{', '.join(SPEC_FORMS)}, got {policy!r}"
        )
    return policy


def resolve_spec(decoder: Mapping[str, Any], spec: str | int | None) -> dict[str, Any]:
    """Writes a shorthand into a copy of the decoder's tree.

    Args:
        decoder: a decoder's settings.
        spec: the shorthand; None keeps the tree as it is.

    Returns:
        The decoder with its tree's numbers set.

    Raises:
        ValueError: if the shorthand does not fit the tree policy, naming the form it takes.
    """
    resolved = deepcopy(dict(decoder))
    if spec is None:
        return resolved
    policy, text, tree = tree_policy(decoder), str(spec).strip(), resolved["tree"]
    if policy == "root" and text == "-":
        return resolved
    if policy == "chain" and re.fullmatch(r"\d+", text):
        tree["depth"] = int(text)
        return resolved
    if policy == "widths" and re.fullmatch(r"\d+(-\d+)*", text):
        tree["widths"] = [int(width) for width in text.split("-")]
        return resolved
    if policy == "node_list" and text in node_lists():
        tree["nodes"] = text
        return resolved
    if policy in ("iid_paths", "stochastic_beam", "head_beams") and re.fullmatch(r"\d+x\d+", text):
        count, depth = (int(number) for number in text.split("x"))
        tree["paths" if policy == "iid_paths" else "width"] = count
        tree["depth"] = depth
        return resolved
    if policy == "beam_root" and re.fullmatch(r"\d+", text):
        tree["width"] = int(text)
        return resolved
    if policy == "beams" and (found := re.fullmatch(r"(\d+)x(\d+)(?:@(\d*\.?\d+))?", text)):
        tree["width"], tree["depth"] = int(found[1]), int(found[2])
        tree["threshold"] = float(found[3]) if found[3] else tree.get("threshold")
        return resolved
    raise ValueError(
        f"decoder {decoder.get('name')!r}: spec {text!r} does not fit its tree policy {policy!r}, "
        f"which takes {SPEC_FORMS[policy]}"
    )


def spec_of(decoder: Mapping[str, Any]) -> str:
    """The shorthand of a decoder's tree, as it stands in the ``spec`` column."""
    policy, tree = tree_policy(decoder), decoder["tree"]
    if policy == "root":
        return "-"
    if policy == "chain":
        return str(tree["depth"])
    if policy == "widths":
        return "-".join(str(width) for width in tree["widths"])
    if policy == "beam_root":
        return str(tree["width"])
    if policy == "node_list":
        return tree["nodes"] if isinstance(tree["nodes"], str) else f"{len(tree['nodes'])} nodes"
    if policy == "beams":
        return f"{tree['width']}x{tree['depth']}@{tree['threshold']:g}"
    return f"{tree['paths' if policy == 'iid_paths' else 'width']}x{tree['depth']}"


def check_tree(decoder: Mapping[str, Any]) -> None:
    """Checks that the tree has its policy's keys, no others, and whole numbers of at least 1.

    Raises:
        ValueError: naming the key, its value and what is allowed.
    """
    policy, name = tree_policy(decoder), decoder.get("name")
    tree = {key: value for key, value in decoder["tree"].items() if key != "policy"}
    allowed = TREE_KEYS[policy]
    for key in tree:
        if key not in allowed:
            raise ValueError(
                f"decoder {name!r}: tree.{key} does not belong to tree policy {policy!r}, "
                f"which has {', '.join(allowed) or 'no settings'}"
            )
    for key in allowed:
        if key not in tree:
            raise ValueError(f"decoder {name!r}: tree.{key} is missing for tree policy {policy!r}")
        value = tree[key]
        if key == "replacement":
            if not isinstance(value, bool):
                raise ValueError(
                    f"decoder {name!r}: tree.replacement must be true or false, got {value!r}"
                )
            continue
        if key == "nodes":
            _check_nodes(name, value)
            continue
        if key == "threshold":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(
                    f"decoder {name!r}: tree.threshold must be a number in 0..1, got {value!r}"
                )
            continue
        numbers = list(value) if key == "widths" else [value]
        if not numbers or any(
            isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers
        ):
            raise ValueError(
                f"decoder {name!r}: tree.{key} must be whole numbers of at least 1, got {value!r}"
            )


def _check_nodes(name: Any, value: Any) -> None:
    """A name that is known, or a list of paths of ranks.

    Raises:
        ValueError: naming the value and the choices.
    """
    if isinstance(value, str):
        if value not in node_lists():
            raise ValueError(
                f"decoder {name!r}: tree.nodes {value!r} is no node list; known: "
                f"{', '.join(node_lists())}, or give paths of ranks such as [[0], [1], [0, 0]]"
            )
        return
    try:
        NodeList(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"decoder {name!r}: tree.nodes: {error}") from None
