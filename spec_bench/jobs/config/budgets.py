"""``budget=14`` and ``length=3``: lists of trees by their number of nodes or by their depth.

The numbers that papers compare are files, such as ``conf/budget/14.yaml``. For any other budget the
trees are enumerated here, by a rule of ours: the chain of that many draft tokens, every K paths of
L tokens with K L nodes, and every tree of RSD-C with that many nodes in which no level branches
more than the one above. Hydra reads a bare number as an int, which names no config, so numbers are
quoted on the way in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from hydra.core.config_store import ConfigStore

from spec_bench.settings.configs import conf_dirs

LISTS = ("budget", "length")  # config groups that allow several choices at once
_ASKED = re.compile(rf"([+]{{0,2}})({'|'.join(LISTS)})=(.*)", re.S)
_WORD = re.compile(r"[^\[\],'\"\s]+")
_MOST = 256
_DECODERS = ("sd", "spectr", "rsd_c", "rsd_s")


def with_quoted_numbers(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra understands it; every budget in it has a config.

    Args:
        arguments: such as ``budget=6``, ``budget=6,14`` or ``budget=[6,24]``, or null; others
            stay as they are.

    Raises:
        ValueError: a budget below 2 or beyond what is enumerated; a length that no file holds.
    """
    return [_quoted(argument) for argument in arguments]


def _quoted(argument: str) -> str:
    match = _ASKED.fullmatch(argument)
    if match is None:
        return argument
    group = match[2]

    def quoted(word: re.Match[str]) -> str:
        if word[0] == "null" and "[" not in match[3]:
            return "[]"  # the default; Hydra takes no null
        if word[0].isidentifier() and word[0] != "null":
            return word[0]  # a config of the user's own
        return f"'{_offered(group, word[0])}'"

    return f"{match[1]}{group}=" + _WORD.sub(quoted, match[3].replace("'", "").replace('"', ""))


def budget_lines(arguments: Sequence[str]) -> list[str]:
    """A line for each budget on a command line whose trees are enumerated: what there are."""
    asked = [match for each in arguments if (match := _ASKED.fullmatch(each))]
    words = (word for match in asked if match[2] == "budget" for word in _WORD.findall(match[3]))
    numbers = dict.fromkeys(int(word) for word in words if word.isdecimal())
    return [_trees_line(number) for number in numbers if number not in _in_files("budget")]


def _trees_line(nodes: int) -> str:
    """How many trees of exactly so many nodes each decoder has; the nearest sizes where none."""
    counts = _counts(nodes)
    counted = ", ".join(f"{decoder} {counts[decoder]}" for decoder in _DECODERS if counts[decoder])
    lacking: dict[str, list[str]] = {}
    for decoder in _DECODERS:
        if not counts[decoder]:
            lacking.setdefault(_nearest(decoder, nodes), []).append(decoder)
    none = (
        f"; none of {', '.join(decoders)}: nearest {near}" for near, decoders in lacking.items()
    )
    return f"budget={nodes}: trees of exactly {nodes} nodes: {counted}{''.join(none)}"


def _nearest(decoder: str, nodes: int) -> str:
    """The next smaller and the next larger number of nodes of which a decoder has trees."""
    ways = (range(nodes - 1, 1, -1), range(nodes + 1, _MOST + 1))
    sizes = (next((n for n in way if _counts(n)[decoder]), None) for way in ways)
    return " and ".join(str(each) for each in sizes if each is not None)


def _counts(nodes: int) -> Counter[str]:
    return Counter(cell.partition(":")[0] for cell in trees_of(nodes))


def _in_files(group: str) -> list[int]:
    """The numbers that have a file."""
    return sorted(int(file.stem) for folder in conf_dirs() for file in folder.glob(f"{group}/*"))


def _offered(group: str, word: str) -> int:
    """The number that a word states, once there is a config of it."""
    if not word.isdecimal():
        raise ValueError(f"{group} must be a whole number or a list such as [6,14], got {word!r}")
    _offer(group, int(word))
    return int(word)


def _offer(group: str, number: int) -> None:
    """Makes sure that there is a config of that number."""
    known = _in_files(group)
    if number in known:
        return
    if group != "budget":
        raise ValueError(f"{group} must be one of {', '.join(map(str, known))}, got {number}")
    if not 2 <= number <= _MOST:
        raise ValueError(f"budget must be 2 to {_MOST} nodes, got {number}")
    node = {"trees": {f"{group} {number}": trees_of(number)}}
    ConfigStore.instance().store(str(number), node, group, package="_global_")


def trees_of(nodes: int) -> list[str]:
    """The cells with exactly ``nodes`` nodes to verify, RSD's decoders in its tables' order.

    Returns:
        ``sd``, ``spectr``, ``rsd_c`` and ``rsd_s`` with their trees, deep ones first.
    """
    paths = [f"{k}x{nodes // k}" for k in range(2, nodes) if nodes % k == 0]
    widths = ["-".join(map(str, each)) for each in _falling(nodes, nodes)]
    return [
        f"sd:{nodes}",
        *(f"spectr:{each}" for each in paths),
        *(f"rsd_c:{each}" for each in widths if not _is_chain_or_flat(each)),
        *(f"rsd_s:{each}" for each in paths),
    ]


def _is_chain_or_flat(widths: str) -> bool:
    """Whether it is SD's tree, or has no second level."""
    return widths.startswith("1") or "-" not in widths


def _falling(nodes: int, widest: int) -> Iterator[tuple[int, ...]]:
    """Branchings per level, none above the one before, of trees with that many nodes.

    A root of ``b`` children over equal subtrees has ``b (1 + n)`` nodes.
    """
    if nodes == 0 or widest == 1:
        yield (1,) * nodes
        return
    for width in range(1, min(nodes, widest) + 1):
        if nodes % width == 0:
            yield from ((width, *rest) for rest in _falling(nodes // width - 1, width))
