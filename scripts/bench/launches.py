"""Launches, copies and waits of one iteration of every decoder, on a simulated GPU.

Llama's shape with 32 layers and a draft of 4, tiny widths (counts do not depend on them), one row,
temperature 1, top-p 0.9, eager and recorded: ``python scripts/bench/launches.py [--out FILE]``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.count_launches import HEADS, VOCAB, WIDTH
from scripts.family.embedded_pair import FITTED, MORE_SPECS
from scripts.family.embedded_pair import SPECS as NINE
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.blocks import resolve_spec
from spec_bench.decode.config import build_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.records.types import Request
from tests.simcuda import DEVICE, SimCuda
from tests.simcuda.counted import PHASES, Counts, counted

ROOT = Path(__file__).resolve().parents[2]

SPECS = {**NINE, **MORE_SPECS}
# Trees as ``conf/decoder`` has them, and how they are shown.
OWN_TREES = {
    "traversal": "2-2-1", "optimal": "3x3", "top_and_sample": "2-2-1", "sequoia": "@9",
    "prompt_lookup": "1x10", "lookup_vote": "1x10", "suffix_lookup": "3x16",
    "eagle": "eagle_25", "eagle2": "10x6@59", "eagle3": "10x8@59", "eagle_rsd_s": "5x5",
    "eagle_traversal": "eagle_25",
    "opt_tree": "8x6@24", "dyspec": "@24", "sd_dynamic": "up to 8", "traversal_paths": "3x3",
    "lookup_or_draft": "5", "dsbd_one_cache": "4x2@0.9",
}  # fmt: skip
# Of the walk node by node, a copy a number: launches of sampling and verify, uploads, waits. What
# never ran so has no entry.
BEFORE = {
    "ar": (8, 29, 2, 3),
    "sd": (149, 194, 6, 7),
    "specinfer": (149, 221, 6, 7),
    "mcsd": (149, 221, 10, 11),
    "mcsd_wor": (170, 242, 6, 7),
    "mcns": (170, 221, 6, 7),
    "rsd_c": (170, 242, 10, 11),
    "rsd_s": (231, 332, 6, 7),
    "spectr": (147, 482, 10, 11),
    "medusa": (108, 472, 10, 15),
    "medusa_typical": (108, 74, 13, 18),
    "redrafter": (210, 441, 3, 5),
    "redrafter_typical": (210, 78, 6, 8),
    "beam_sampling": (0, 117, 11, 12),
    "beam_search": (0, 0, 10, 11),
    "dsbd": (155, 655, 16, 17),
    "block": (156, 193, 1, 1),
    "traversal": (165, 264, 1, 1),
    "optimal": (154, 602, 1, 1),
    "top_and_sample": (195, 95, 1, 1),
    "sequoia": (281, 96, 11, 11),
    "prompt_lookup": (7, 42, 1, 1),
    "suffix_lookup": (7, 48, 1, 1),
}


def model(layers: int, how: str) -> HuggingFaceModel:
    """A Llama of random weights on the simulated device, its passes run in some way."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    module = AutoModelForCausalLM.from_config(config).eval()
    return HuggingFaceModel(module.to(DEVICE), VOCAB, DEVICE, how)


def measured(how: str) -> dict[str, Counts]:
    """One iteration of each decoder, passes eager (``none``) or recorded (``static``)."""
    found = {}
    with SimCuda() as sim:
        pair = model(32, how), model(4, how)
        heads: dict[str, Any] = {name: made().to(DEVICE).eval() for name, made in HEADS.items()}
        for name in (*SPECS, *OWN_TREES):
            settings = yaml.safe_load((ROOT / "conf" / "decoder" / f"{name}.yaml").read_text())
            if name == "sequoia":  # a job fills it in, from what was measured
                settings["tree"] |= {"nodes": FITTED, "total": len(FITTED)}
            kind = settings["drafter"]["kind"]
            sampling = SamplingSettings(temperature=1.0, top_p=0.9)
            drafts = [pair[1]] if kind in ("language_model", "lookup_or_model") else []
            built = build_decoder(
                resolve_spec(settings, SPECS.get(name)),
                pair[0],
                drafts,
                sampling,
                heads=heads.get(kind),
            )
            request = Request("p", (3, 1, 4, 1, 5, 9, 2, 6), 40)
            if how == "static":  # past the checks of what was recorded
                for _ in range(3):
                    built.generate([request], seed=0)
            found[name] = counted(sim, built, [request], heads.get(kind))
            print(how, name, found[name], file=sys.stderr, flush=True)
    return found


def page(found: dict[str, Counts], recorded: dict[str, Counts]) -> str:
    """The table in Markdown."""
    head = ["decoder", "tree", *PHASES, "uploads", "downloads", "waits", "recorded"]
    lines = [
        "# What one iteration asks of a GPU",
        "",
        "Kernel launches by what they are for, copies and waits, counted on a simulated device "
        "by `make launches`: Llama of 32 layers and a draft of 4, one row, temperature 1, top-p "
        "0.9, eager passes. Before the arrow: each node walked to by itself, each number copied "
        "by itself. `recorded`: all launches of an iteration whose passes, levels and walk are "
        "recorded (`engine.compile=static`), each replay one of them. Draft heads propose in "
        "`draft`; what orders their proposals is `sampling`. A wait is one for a device that then "
        "has nothing left to do: where there is none the host gives the device an iteration before "
        "it reads the last one's verdict, and uploads nothing. An EAGLE head is a layer, run once "
        "a level of the tree; `sd_dynamic` and `dyspec` ask behind each level whether another "
        "is worth it.",
        "",
        "| " + " | ".join(head) + " |",
        "| --- | --- |" + " --: |" * (len(head) - 2),
    ]
    for name, counts in found.items():
        cells = [str(counts.launches[phase]) for phase in PHASES]
        cells += [str(counts.uploads), str(counts.downloads), str(counts.waits)]
        for place, before in zip((1, 3, 5, 7), BEFORE.get(name, ()), strict=False):
            cells[place] = f"{before} → {cells[place]}"
        cells.append(str(sum(recorded[name].launches.values())))
        lines.append("| " + " | ".join([name, (SPECS | OWN_TREES)[name], *cells]) + " |")
    lines += [
        "",
        "Draft beams (`dsbd`) are verified layer by layer: the law of a layer depends on which "
        "beams of the layer before stand, and each is a warp of its own. `traversal` carries a "
        "quota from child to child, some ten launches each; `block`, a chain, has all quotas at "
        "once, in float64. `optimal` finds eight levels of its choice one after the other. "
        "`prompt_lookup` and `suffix_lookup` draw each position's number by a call of its own, "
        "11 and 17 a row, as plain decoding does. A stochastic beam (`rsd_s`) takes some 75 "
        "launches a level: its truncated Gumbel values and a stable sort over all parents. What "
        "is left of a recorded iteration: masks, positions and slots of each pass, copied into "
        "its buffers (some nine launches a pass), a row's random numbers, the accepted path "
        "moved in the caches. Trees whose form changes with every iteration, beams and draft "
        "heads are not recorded.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Counts and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks" / "launches.md")
    out = parser.parse_args().out
    text = page(measured("none"), measured("static"))
    out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
