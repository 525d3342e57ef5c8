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


def titled(names: dict[str, str], name: str) -> str:
    """The written form of a name; the name itself where there is none."""
    return names.get(name, name)
