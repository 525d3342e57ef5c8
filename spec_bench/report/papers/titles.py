"""How names in files are written for people."""

from __future__ import annotations

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
DECODERS = {
    "ar": "AR",
    "sd": "SD",
    "spectr": "SpecTr",
    "specinfer": "SpecInfer",
    "rsd_c": "RSD-C",
    "rsd_s": "RSD-S",
    "mcsd": "MCSD with replacement",
    "mcsd_wor": "MCSD",
    "mcns": "MCNS",
    "beam_sampling": "beam sampling",
    "beam_search": "beam search",
    "dsbd": "DSBD",
    "dsbd_one_cache": "DSBD, one cache",
    "medusa": "Medusa",
    "medusa_typical": "Medusa, typical",
    "redrafter": "ReDrafter",
    "redrafter_typical": "ReDrafter, typical",
}
METRICS = {
    "block_efficiency": "block efficiency",
    "mbsu": "MBSU",
    "token_rate": "token rate (1/s)",
    "speedup": "speedup (×)",
    "acceptance_rate": "acceptance rate",
    "rouge2": "ROUGE-2",
    "bleu": "BLEU",
}

# What sets a row apart from an exact one: how it is written, and what it means.
MARKS = {"exact_beam": "beam law", "approximate": "approximate", "simulated": "simulated"}
MEANINGS = {
    "exact_beam": "beam law: exact for the law of beam decoding, which is not that of the target's "
    "single samples.",
    "approximate": "approximate: the output does not follow the target's distribution.",
    "simulated": "simulated: acceptance was drawn at a stated rate, only time is real.",
}


def titled(names: dict[str, str], name: str) -> str:
    """The written form of a name; the name itself where there is none."""
    return names.get(name, name)
