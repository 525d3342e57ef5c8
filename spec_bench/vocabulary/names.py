"""Names of decoders, tasks and marks in print.

Columns' titles are in ``columns``; decoders' styles in their YAML (``decoders``).
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
    """Returns a decoder's style; without a YAML its own name, and a look that depends on it."""
    if style := find_decoder(name):
        return style
    looks = sorted(product(COLOURS.keys() - {"black"}, MARKERS))
    colour, marker = looks[zlib.crc32(name.encode()) % len(looks)]
    return DecoderStyle(name, COLOURS[colour], marker)


def make_distinct_styles(decoders: Collection[str]) -> dict[str, DecoderStyle]:
    """Returns styles of decoders in one figure: no two have the same colour and marker.

    Decoders with a style in a YAML come first, short names before long ones. If a look is taken,
    the marker is hollow, or else another one of its colour, or the colour is another.
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
    """Returns a task's name in print; an unlisted one keeps its name."""
    return TASKS.get(name, name)


def format_decoder_and_tree(row: Mapping[str, Any]) -> str:
    """Returns decoder and tree of a row; a baseline has no tree."""
    return f"{row['decoder']} {row['spec']}".removesuffix(" -") + format_row_suffix(row)


def format_row_suffix(row: Mapping[str, Any], with_stalls: bool = True) -> str:
    """Returns a suffix for a row's name: its paths were rows, it stalled (unless left out), or it
    lacks prompts.
    """
    paths = ", paths as rows" * (str(row.get("tree_attention")).lower() == "false")
    doubts = _list_doubts(row) if with_stalls else [explain_missing_data(str(row.get("reason")))]
    return "".join([paths, *(f", {doubt.partition(':')[0]}" for doubt in doubts if doubt)])


def _list_doubts(row: Mapping[str, Any]) -> list[str]:
    reasons = str(row.get("reason"))
    return [
        doubt for doubt in (explain_timing_doubt(reasons), explain_missing_data(reasons)) if doubt
    ]


def summarise_doubts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Summarises why rows' times decide nothing or prompts are missing: a line per kind, with the
    number of rows and the first one's reason.
    """
    kinds = group_by_key(
        (doubt.partition(":")[0], f"{row['decoder']} {row['spec']}: {doubt}")
        for row in rows
        for doubt in _list_doubts(row)
    )
    return [
        f"{len(further_doubts) + 1} rows are {kind}, such as {first_doubt}"
        if further_doubts
        else first_doubt
        for kind, (first_doubt, *further_doubts) in kinds.items()
    ]


def format_title_and_name(name: str) -> str:
    """Returns a decoder's name in print, and its name in results if that is another word."""
    title = get_decoder_style(name).title
    is_same_word = [*filter(str.isalnum, title.lower())] == [*filter(str.isalnum, name.lower())]
    return title if is_same_word else title + " (" + name + ")"


def combine_names(decoder: str, drafter: object = None, verifier: object = None) -> str:
    """Composes the name of a decoder whose drafter or verifier a cell replaces by name."""
    parts = [drafter, decoder, verifier]
    return "_".join(part for part in parts if isinstance(part, str))


def get_decoder_or_task_title(name: str) -> str:
    """Returns a decoder's or task's name in print; any other name as it is."""
    return TASKS.get(name) or get_decoder_style(name).title
