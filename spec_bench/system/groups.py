"""Items in groups."""

from collections.abc import Iterable
from typing import TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


def group_by_key(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Returns the items of each key, both in the order in which they come first."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
