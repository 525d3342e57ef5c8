"""How decoders, tasks and marks are written for people, and what they look like in figures.

Columns' titles are in ``columns``. The pages' style sheet takes its colours from here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


class Colour(NamedTuple):
    """A colour on white and on a dark page."""

    light: str
    dark: str


# Okabe & Ito: distinguishable with any colour vision.
BLUE, VERMILLION = Colour("#0072B2", "#4AA8E0"), Colour("#D55E00", "#F08A3C")
GREEN, PURPLE = Colour("#009E73", "#2FC294"), Colour("#CC79A7", "#E29AC4")
ORANGE, SKY = Colour("#E69F00", "#E69F00"), Colour("#56B4E9", "#56B4E9")
BLACK = Colour("#000000", "#98A2AD")
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Decoder:
    """A decoder for people.

    Attributes:
        title: in tables and figures.
        colour: in figures and on pages.
        marker: matplotlib's letter.
    """

    title: str
    colour: Colour
    marker: str = "o"


DECODERS: dict[str, Decoder] = {
    "ar": Decoder("AR", BLACK, "X"),
    "sd": Decoder("SD", BLUE, "o"),
    "spectr": Decoder("SpecTr", ORANGE, "s"),
    "specinfer": Decoder("SpecInfer", ORANGE, "v"),
    "rsd_c": Decoder("RSD-C", GREEN, "^"),
    "rsd_s": Decoder("RSD-S", VERMILLION, "D"),
    "mcsd": Decoder("MCSD with replacement", PURPLE, "s"),
    "mcsd_wor": Decoder("MCSD", PURPLE, "o"),
    "mcns": Decoder("MCNS", PURPLE, "^"),
    "block": Decoder("block verification", SKY, "o"),
    "traversal": Decoder("traversal", SKY, "^"),
    "optimal": Decoder("optimal rule", BLUE, "s"),
    "spectr_traversal": Decoder("SpecTr's paths, traversal", SKY, "P"),
    "specinfer_traversal": Decoder("SpecInfer's trees, traversal", SKY, "v"),
    "rsd_s_traversal": Decoder("RSD-S's beams, traversal", SKY, "X"),
    "top_and_sample": Decoder("top and sample", SKY, "D"),
    "beam_sampling": Decoder("beam sampling", GREEN, "s"),
    "beam_search": Decoder("beam search", GREEN, "P"),
    "dsbd": Decoder("DSBD", VERMILLION, "o"),
    "dsbd_one_cache": Decoder("DSBD, one cache", VERMILLION, "D"),
    "medusa": Decoder("Medusa", BLUE, "o"),
    "medusa_typical": Decoder("Medusa, typical", BLUE, "v"),
    "sequoia": Decoder("Sequoia", GREEN, "v"),
    "opt_tree": Decoder("OPT-Tree", ORANGE, "D"),
    "dyspec": Decoder("DySpec", GREEN, "D"),
    "sd_dynamic": Decoder("SD, dynamic length", BLUE, "v"),
    "traversal_paths": Decoder("traversal of merged paths", SKY, "P"),
    "lookup_or_draft": Decoder("lookup or draft", PURPLE, "v"),
    "prompt_lookup": Decoder("prompt lookup", SKY, "v"),
    "lookup_vote": Decoder("lookup by votes", SKY, "D"),
    "suffix_lookup": Decoder("suffix lookup, own text", SKY, "s"),
    "hf_generate": Decoder("transformers generate", VERMILLION, "P"),
    "hf_assisted": Decoder("transformers assisted", VERMILLION, "o"),
    "hf_prompt_lookup": Decoder("transformers prompt lookup", VERMILLION, "v"),
    "served": Decoder("a server", GREEN, "X"),
    "redrafter": Decoder("ReDrafter, exact match", VERMILLION, "s"),
    "redrafter_typical": Decoder("ReDrafter, typical", VERMILLION, "v"),
    "eagle": Decoder("EAGLE", ORANGE, "o"),
    "eagle2": Decoder("EAGLE-2", ORANGE, "^"),
    "eagle3": Decoder("EAGLE-3", ORANGE, "P"),
    "eagle_rsd_s": Decoder("EAGLE-3, RSD-S", VERMILLION, "^"),
    "eagle_traversal": Decoder("EAGLE-3, EAGLE's tree, traversal", SKY, "P"),
    "eagle_rsd_s_traversal": Decoder("EAGLE-3, RSD-S's beams, traversal", SKY, "X"),
    "dyspec_traversal": Decoder("DySpec, traversal", SKY, "D"),
    "eagle3_eagle": Decoder("EAGLE-3, EAGLE's tree", GREEN, "v"),
    "redrafter_no_rnn": Decoder("ReDrafter, no recurrence", GREEN, "^"),
}
# Other decoders' trees and rules with an EAGLE head in place of their draft model look like theirs.
_ON_EAGLE = (
    *("sd", "block", "spectr", "optimal", "spectr_traversal", "mcns", "specinfer"),
    *("specinfer_traversal", "rsd_c", "traversal", "top_and_sample", "dyspec"),
    "dyspec_traversal",
)
DECODERS |= {
    f"{head}_{name}": replace(DECODERS[name], title=f"{title}, {DECODERS[name].title}")
    for head, title, own in (("eagle", "EAGLE", ("sd",)), ("eagle3", "EAGLE-3", _ON_EAGLE))
    for name in own
}
TASKS = {
    "xsum": "XSum",
    "wmt18_deen": "WMT18 De-En",
    "wmt14_ende": "WMT14 En-De",
    "dolly": "Dolly",
    "alpaca": "Alpaca",
    "mt_bench": "MT-bench",
    "squad": "SQuAD",
    "spider": "Spider",
}

# What sets a row apart from an exact one: how it is written, and what it means.
MARKS = {
    "exact_beam": "beam law",
    "approximate": "approximate",
    "simulated": "simulated",
    "unaudited": "another engine",
}
MEANINGS = {
    "exact_beam": "beam law: exact for the law of beam decoding, which is not that of the target's "
    "single samples.",
    "approximate": "approximate: the output does not follow the target's distribution.",
    "simulated": "simulated: acceptance was drawn at a stated rate, only time is real.",
    "unaudited": "another engine: a library's own decoding, on the same prompts and clock; its law "
    "was not enumerated.",
}


def decoder(name: str) -> Decoder:
    """How a decoder is shown; one that is not listed keeps its name and is purple."""
    return DECODERS.get(name, Decoder(name, PURPLE))


def task(name: str) -> str:
    """A task's name in print; one that is not listed keeps its name."""
    return TASKS.get(name, name)


def combined(decoder: str, drafter: object = None, verifier: object = None) -> str:
    """What a decoder is called whose drafter or verifier a cell replaces.

    Args:
        decoder: its own name.
        drafter: where it is a text, the drafter in place of the decoder's.
        verifier: where it is a text, the rule in place of the decoder's.
    """
    parts = [drafter, decoder, verifier]
    return "_".join(part for part in parts if isinstance(part, str))


def title(name: str) -> str:
    """A decoder's or task's name in print; any other name as it is."""
    return TASKS.get(name) or decoder(name).title
