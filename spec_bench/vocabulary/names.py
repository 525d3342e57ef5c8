"""How decoders, tasks and marks are written for people.

Columns' titles are in ``columns``; what a decoder looks like is in its YAML (``decoders``).
"""

from __future__ import annotations

from spec_bench.vocabulary.decoders import Decoder, find_decoder
from spec_bench.vocabulary.palette import COLOURS

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
    """How a decoder is shown; one of which no YAML says it keeps its name and is purple."""
    return find_decoder(name) or Decoder(name, COLOURS["purple"])


def task(name: str) -> str:
    """A task's name in print; one that is not listed keeps its name."""
    return TASKS.get(name, name)


def combined(decoder: str, drafter: object = None, verifier: object = None) -> str:
    """What a decoder is called whose drafter or verifier, where it is a text, a cell replaces."""
    parts = [drafter, decoder, verifier]
    return "_".join(part for part in parts if isinstance(part, str))


def title(name: str) -> str:
    """A decoder's or task's name in print; any other name as it is."""
    return TASKS.get(name) or decoder(name).title
