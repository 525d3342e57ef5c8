"""Groups items by key, and finds the keys that mappings share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")
Result = TypeVar("Result")


def group_by_key(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Groups items by key, keeping the order of both."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def make_in_groups(
    make: Callable[[list[Item]], Sequence[Result]],
    items: Sequence[Item],
    key: Callable[[Item], object],
) -> list[Result]:
    """Calls ``make`` once for the items of each key; returns its results in the items' order."""
    results: dict[int, Result] = {}
    for places in group_by_key((key(item), place) for place, item in enumerate(items)).values():
        results |= zip(places, make([items[place] for place in places]), strict=True)
    return [results[place] for place in range(len(items))]


def find_shared_keys(parts: Sequence[Mapping[Key, object]]) -> list[Key]:
    """Finds the keys that all parts have, in the first one's order; empty without parts."""
    return [key for key in parts[0] if all(key in part for part in parts)] if parts else []
