"""Printed names of decoders, tasks and marks.

Titles of columns are in ``columns``; styles of decoders in their YAML files (see ``decoders``).
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from spec_bench.records.types import explain_missing_data, explain_timing_doubt
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

# Marks of rows that are not exact, and their meanings.
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


def get_decoder_style(name: str) -> DecoderStyle:
    """Returns a decoder's style; without a YAML, its name with a look derived from the name."""
    if style := find_decoder(name):
        return style
    looks = sorted(product(COLOURS.keys() - {"black"}, MARKERS))
    colour, marker = looks[zlib.crc32(name.encode()) % len(looks)]
    return DecoderStyle(name, COLOURS[colour], marker)


def make_distinct_styles(decoders: Collection[str]) -> dict[str, DecoderStyle]:
    """Assigns styles to the decoders of a figure such that no two share both colour and marker.

    Decoders with a style in a YAML come first, short names before long ones. If a decoder's own
    look is taken, it gets the first free one of: its hollow marker, another marker of its colour,
    another colour.
    """
    style_by_name: dict[str, DecoderStyle] = {}
    for name in sorted(decoders, key=lambda name: (find_decoder(name) is None, len(name), name)):
        look = get_decoder_style(name)
        # The decoder's own colour and marker first.
        colours = sorted(PALETTE, key=lambda colour: colour != look.colour)
        markers = sorted(MARKERS, key=lambda marker: marker != look.marker)
        used_looks = {
            (style.colour, style.marker, style.hollow) for style in style_by_name.values()
        }
        free_looks = (
            style for style in product(colours, markers, (False, True)) if style not in used_looks
        )
        colour, marker, hollow = next(free_looks, (look.colour, look.marker, look.hollow))
        style_by_name[name] = replace(look, colour=colour, marker=marker, hollow=hollow)
    return style_by_name


def get_task_title(name: str) -> str:
    """Returns a task's printed name; a task without an entry keeps its name."""
    return TASKS.get(name, name)


def format_decoder_and_tree(row: Mapping[str, Any]) -> str:
    """Formats a row's decoder and tree, with its suffix; a baseline has no tree."""
    return f"{row['decoder']} {row['spec']}".removesuffix(" -") + format_row_suffix(row)


def format_row_suffix(row: Mapping[str, Any], with_stalls: bool = True) -> str:
    """Formats what a reader must know about a row: its paths were decoded as rows, it stalled
    (unless ``with_stalls`` is off), or it lacks prompts. "" if nothing.
    """
    paths_note = ", paths as rows" * (str(row.get("tree_attention")).lower() == "false")
    doubts = (
        _list_timing_and_data_doubts(row)
        if with_stalls
        else [explain_missing_data(str(row.get("reason")))]
    )
    return "".join([paths_note, *(f", {doubt.partition(':')[0]}" for doubt in doubts if doubt)])


def _list_timing_and_data_doubts(row: Mapping[str, Any]) -> list[str]:
    reasons = str(row.get("reason"))
    return [
        doubt for doubt in (explain_timing_doubt(reasons), explain_missing_data(reasons)) if doubt
    ]


def summarise_doubts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Summarises why timings of rows are doubtful or prompts missing: a line per kind of doubt,
    with the number of rows and the first row's reason.
    """
    kinds = group_by_key(
        (doubt.partition(":")[0], f"{row['decoder']} {row['spec']}: {doubt}")
        for row in rows
        for doubt in _list_timing_and_data_doubts(row)
    )
    return [
        f"{len(further_doubts) + 1} rows are {kind}, such as {first_doubt}"
        if further_doubts
        else first_doubt
        for kind, (first_doubt, *further_doubts) in kinds.items()
    ]


def format_title_and_name(name: str) -> str:
    """Formats a decoder's title, followed by its name in results if the two differ."""
    title = get_decoder_style(name).title
    is_same_word = [*filter(str.isalnum, title.lower())] == [*filter(str.isalnum, name.lower())]
    return title if is_same_word else title + " (" + name + ")"


def compose_decoder_name(decoder: str, drafter: object = None, verifier: object = None) -> str:
    """Composes the name of a decoder with the drafter and verifier that a cell replaces by name."""
    parts = [drafter, decoder, verifier]
    return "_".join(part for part in parts if isinstance(part, str))


def get_decoder_or_task_title(name: str) -> str:
    """Returns the printed name of a task or decoder; any other name as it is."""
    return TASKS.get(name) or get_decoder_style(name).title
