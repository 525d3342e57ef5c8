"""Launches of one iteration of every decoder and tree that a paper prints, on a simulated GPU.

Two tables in results/benchmarks, which ``scripts/gpu/plan.py`` and the GPU's benchmarks read:
``launches.csv`` has what lies outside the models' passes, by decoder, tree and law; and
``launches-passes.csv`` what a pass is made of, by architecture. Models are tiny, since counts do
not depend on widths: ``python scripts/bench/count_launches.py [--again]``; minutes.
Without ``--again`` what stands in the table is not counted anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.launches_table import (
    LAUNCHES,
    PASSES,
    Outside,
    PassLaunches,
    law_of,
    outside,
    spec_of,
)
from scripts.family.embedded_pair import SPECS
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.blocks import resolve_spec
from spec_bench.decode.config import build_decoder
from spec_bench.draft.eagle_network import Eagle1Head, Eagle3Head
from spec_bench.draft.eagle_shape import EagleShape
from spec_bench.draft.medusa import MedusaHeads, MedusaShape
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.static_pass import CHECKS
from spec_bench.records.types import Request
from spec_bench.system import files
from spec_bench.vocabulary.published import read_published
from tests.simcuda import DEVICE, SimCuda
from tests.simcuda.counted import counted

ROOT = Path(__file__).resolve().parents[2]

VOCAB, WIDTH = 101, 32
HEADS: dict[str, Any] = {
    "medusa": lambda: MedusaHeads(MedusaShape(WIDTH, VOCAB, 4)),
    "redrafter": lambda: RecurrentHead(RecurrentShape(WIDTH, VOCAB)),
    "eagle": lambda: Eagle1Head(eagle_shape(1, VOCAB)),
    "eagle3": lambda: Eagle3Head(eagle_shape(3, VOCAB - 2), torch.arange(VOCAB - 2)),
}


def asked(new_tokens: int) -> Request:
    """A request that the third of all iterations does not end."""
    return Request("p", PROMPT, new_tokens)


def eagle_shape(version: Literal[1, 3], own_vocab: int) -> EagleShape:
    """A published EAGLE head's, at these widths; EAGLE-3's knows fewer tokens than the target."""
    size = {"heads": 4, "kv_heads": 4, "head_dim": WIDTH // 4, "inner": 2 * WIDTH}
    return EagleShape(version, WIDTH, WIDTH, VOCAB, own_vocab, **size, fc_bias=version == 1)


# Two shared heads or none; OPT-350M alone projects its embeddings and normalises at the end.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4, "intermediate_size": 64},
    "llama_grouped": {"num_key_value_heads": 2, "intermediate_size": 64},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": WIDTH},
    "opt_projected": {
        "ffn_dim": 64,
        "word_embed_proj_dim": WIDTH // 2,
        "do_layer_norm_before": False,
    },
}
# What the GPU's benchmarks decode besides: decoder, tree and law.
BENCHMARKS = [
    *((name, spec, ("0.3", "1")) for name, spec in SPECS.items()),
    *((name, spec, ("1", "1")) for name, spec in (("ar", "-"), ("sd", "3"))),
    *(
        (name, spec, ("0", "1"))
        for name, spec in (
            ("ar", "-"), ("sd", "3"), ("rsd_s", "4x3"), ("redrafter", "2x5"), ("redrafter", "8x5")
        )
    ),
]  # fmt: skip
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
# Beams come in many numbers, and each has constants that a first answer brings to the device.
LEAST, LEAST_OF_BEAMS = 40, 120


def model(shape: str, layers: int, how: str = "none") -> HuggingFaceModel:
    """A model of random weights on the simulated device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        shape.partition("_")[0], vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=layers,
        num_attention_heads=4, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
        pad_token_id=None, tie_word_embeddings=False, **SHAPES[shape],
    )  # fmt: skip
    module = AutoModelForCausalLM.from_config(config).eval()
    return HuggingFaceModel(module.to(DEVICE), VOCAB, DEVICE, how)


def decoder(name: str, spec: str, target: Any, draft: Any, temperature: float, top_p: float) -> Any:
    """(decoder, its heads) as ``conf/decoder`` has it, with a tree."""
    settings = yaml.safe_load((ROOT / "conf" / "decoder" / f"{name}.yaml").read_text())
    kind = settings["drafter"]["kind"]
    drafts = [draft] if kind == "language_model" else []
    heads = HEADS[kind]().to(DEVICE).eval() if kind in HEADS else None
    sampling = SamplingSettings(temperature=temperature, top_p=top_p)
    settings = resolve_spec(settings, spec)
    return build_decoder(settings, target, drafts, sampling, heads=heads), heads


def count_pass(shape: str) -> PassLaunches:
    """What a root's pass takes, from models of one and of two layers."""
    found = []
    for layers in (1, 2):
        with SimCuda() as sim:
            made, heads = decoder("ar", "-", model(shape, layers), None, 1.0, 1.0)
            found.append(counted(sim, made, [asked(LEAST)], heads).launches["target"])
    one, two = found
    return PassLaunches(shape, two - one, 2 * one - two)


def count_static() -> int:
    """Launches of the host in a static pass: its buffers are filled, it is replayed, and kept."""
    with SimCuda() as sim:
        made, heads = decoder("ar", "-", model("llama", 2, "static"), None, 1.0, 1.0)
        for _ in range(CHECKS):
            made.generate([asked(LEAST)], 0)
        return counted(sim, made, [asked(LEAST)], heads).launches["target"]


def count_outside(name: str, spec: str, law: tuple[str, str]) -> Outside:
    """What an iteration takes besides its models' passes."""
    with SimCuda() as sim:
        # An EAGLE-3 head reads three hidden states of the target.
        target, draft = model("llama", 3 if name == "eagle3" else 1), model("llama", 1)
        forward = draft.forward

        def one_more(*given: Any, **named: Any) -> Any:
            sim.launches["passes"] += 1
            return forward(*given, **named)

        draft.forward = one_more  # type: ignore[method-assign]
        made, heads = decoder(name, spec, target, draft, float(law[0]), float(law[1]))
        least = LEAST_OF_BEAMS if name.startswith(("dsbd", "beam")) else LEAST
        counts = counted(sim, made, [asked(max(least, 4 * (made.depth + 1)))], heads)
        passes = sim.launches["passes"]
    policy, launches = getattr(made, "policy", None), counts.launches
    shape = getattr(policy, "shape", None)
    levels = shape.levels if shape else [made.nodes // max(made.depth, 1)] * made.depth
    return Outside(
        decoder=name, spec=spec, temperature=law[0], top_p=law[1],
        levels="-".join(map(str, levels)), draft_passes=passes,
        heads=launches["draft"] if heads is not None else 0, sampling=launches["sampling"],
        verify=launches["verify"], rest=launches["rest"], uploads=counts.uploads,
        waits=counts.waits,
    )  # fmt: skip


PLANNED = ("dsbd", "eagle", "mcsd", "redrafter", "rsd")  # the papers of ``scripts/gpu/plan.py``


def printed() -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Decoder, tree and law of every printed cell with a tree, each once."""
    seen = set()
    for paper in PLANNED:
        for row in read_published(ROOT / "experiments" / paper / "reference.csv"):
            key = row["decoder"], spec_of(row), law_of(row)
            if key[1] and key not in seen:
                seen.add(key)
                yield key


def passes_of_all() -> list[PassLaunches]:
    """Of every architecture, and what a static pass asks of the host."""
    found = [count_pass(shape) for shape in SHAPES]
    return [*found, PassLaunches("static", 0, count_static())]


def main() -> None:
    """Counts and writes."""
    passes = passes_of_all()
    files.write_csv(PASSES, [vars(each) for each in passes], list(vars(passes[0])))
    again = "--again" in sys.argv[1:]
    found = {} if again or not LAUNCHES.exists() else dict(outside())
    for key in sorted({*printed(), *BENCHMARKS}):
        if key not in found:
            found[key] = count_outside(*key)
            print(found[key], flush=True)
            rows = [vars(found[each]) for each in sorted(found)]
            files.write_csv(LAUNCHES, rows, list(rows[0]))


if __name__ == "__main__":
    main()
