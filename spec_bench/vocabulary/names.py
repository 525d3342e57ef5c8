"""How decoders, tasks and marks are written for people.

Columns' titles are in ``columns``; what a decoder looks like is in its YAML (``decoders``).
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from spec_bench.records.types import find_doubt, find_loss
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.decoders import COLOURS, MARKERS, PALETTE, DecoderStyle, find_decoder

TASKS = {
    "xsum": "XSum",
    "wmt18_deen": "WMT18 De-En",
    "wmt14_ende": "WMT14 En-De",
    "dolly": "Dolly",
    "alpaca": "Alpaca",
    "mt_bench": "MT-bench",
    "squad": "SQuAD",
    "squad_v1": "SQuAD 1.1",
    "wmt_mcsd": "MCSD's WMT14 En-De",
    "spider": "Spider",
    "humaneval": "HumanEval",
    "speed_bench": "SPEED-Bench",
}

# What sets a row apart from an exact one: how it is written, and what it means.
MARKS = {
    "exact_beam": "beam distribution",
    "approximate": "approximate",
    "simulated": "simulated",
    "unaudited": "another engine",
}
MEANINGS = {
    "exact_beam": "beam distribution: exact for the distribution of beam decoding, not for the "
    "target's single samples.",
    "approximate": "approximate: the output does not follow the target's distribution.",
    "simulated": "simulated: acceptance was drawn at a stated rate, only time is real.",
    "unaudited": "another engine: a library's own decoding, on the same prompts and clock; its "
    "distribution was not enumerated.",
}


def decoder_style(name: str) -> DecoderStyle:
    """How a decoder is shown; one of which no YAML says it keeps its name, its look follows it."""
    if found := find_decoder(name):
        return found
    looks = sorted(product(COLOURS.keys() - {"black"}, MARKERS))
    colour, marker = looks[zlib.crc32(name.encode()) % len(looks)]
    return DecoderStyle(name, COLOURS[colour], marker)


def distinct_styles(decoders: Collection[str]) -> dict[str, DecoderStyle]:
    """How decoders of these names are shown beside each other: no two have one colour and marker.

    Those of which a YAML says it come first, short names before long ones; who comes later to a
    look that is taken is hollow, or else has another marker of its colour, or another colour.
    """
    shown: dict[str, DecoderStyle] = {}
    for name in sorted(decoders, key=lambda name: (find_decoder(name) is None, len(name), name)):
        look = decoder_style(name)
        # The more alike the sooner.
        colours = sorted(PALETTE, key=lambda colour: colour != look.colour)
        markers = sorted(MARKERS, key=lambda marker: marker != look.marker)
        taken = {(each.colour, each.marker, each.hollow) for each in shown.values()}
        free = (each for each in product(colours, markers, (False, True)) if each not in taken)
        colour, marker, hollow = next(free, (look.colour, look.marker, look.hollow))
        shown[name] = replace(look, colour=colour, marker=marker, hollow=hollow)
    return shown


def task_title(name: str) -> str:
    """Returns a task's name in print; one that is not listed keeps its name."""
    return TASKS.get(name, name)


def cell_name(row: Mapping[str, Any]) -> str:
    """Decoder and tree, as they are written in results; a baseline has no tree."""
    return f"{row['decoder']} {row['spec']}".removesuffix(" -") + format_row_suffix(row)


def format_row_suffix(row: Mapping[str, Any]) -> str:
    """Returns what sets a row apart from one of the same tree: its paths were rows, it stalled, it
    lacks prompts.
    """
    paths = ", paths as rows" * (str(row.get("tree_attention")).lower() == "false")
    return "".join([paths, *(f", {doubt.partition(':')[0]}" for doubt in _doubts(row))])


def _doubts(row: Mapping[str, Any]) -> list[str]:
    reasons = str(row.get("reason"))
    return [doubt for doubt in (find_doubt(reasons), find_loss(reasons)) if doubt]


def summarise_doubts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns a line on each kind of reason why rows' times decide nothing or prompts are missing:
    the only row's, or how many rows' and the first one's.
    """
    kinds = group_by_key(
        (doubt.partition(":")[0], f"{row['decoder']} {row['spec']}: {doubt}")
        for row in rows
        for doubt in _doubts(row)
    )
    return [
        f"{len(others) + 1} rows are {kind}, such as {told}" if others else told
        for kind, (told, *others) in kinds.items()
    ]


def full_title(name: str) -> str:
    """Returns a decoder's name in print, with the one in results where that is another word."""
    title = decoder_style(name).title
    same = [*filter(str.isalnum, title.lower())] == [*filter(str.isalnum, name.lower())]
    return title if same else title + " (" + name + ")"


def combine_names(decoder: str, drafter: object = None, verifier: object = None) -> str:
    """What a decoder is called whose drafter or verifier, where it is a text, a cell replaces."""
    parts = [drafter, decoder, verifier]
    return "_".join(part for part in parts if isinstance(part, str))


def display_title(name: str) -> str:
    """Returns a decoder's or task's name in print; any other name as it is."""
    return TASKS.get(name) or decoder_style(name).title
