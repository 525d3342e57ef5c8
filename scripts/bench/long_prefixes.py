"""A pass behind a long prefix: transformers' attention, ours under one mask, ours in two parts.

    python scripts/bench/long_prefixes.py                        # one thread; writes the table
    python scripts/bench/long_prefixes.py --device cuda --dtype bfloat16 --out -

A random Llama of four blocks with heads of 64, by key heads, slots before the pass and its tokens;
medians of seven passes each way, in turn.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.engine import hugging_face
from spec_bench.engine.attention import NAME, grouped_attention, install_attention
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import wait_for_device
from spec_bench.engine.tree_pass import run_causal_tokens
from spec_bench.system.files import write_text

HEADS, WIDTH = 9, 64
SLOTS, TOKENS = (2048, 8192, 32768), (1, 16, 60)
ROUNDS = 7
Way = tuple[str, int]  # the attention's name, and from how many slots on it is split
WAYS: tuple[Way, ...] = (("sdpa", 1 << 30), (NAME, 1 << 30), (NAME, 1))
OUT = Path(__file__).resolve().parents[2] / "results/benchmarks/long-prefixes.md"


def model_of(keys: int, options: argparse.Namespace) -> HuggingFaceModel:
    """Four blocks whose query heads share ``keys`` key heads."""
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=HEADS * WIDTH,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=keys,
        max_position_embeddings=2 * max(SLOTS),
    )
    module = LlamaForCausalLM(config).to(options.device, getattr(torch, options.dtype)).eval()
    assert install_attention(module, NAME, grouped_attention)
    return HuggingFaceModel(module, 1000, torch.device(options.device))


@torch.inference_mode()
def seconds(model: HuggingFaceModel, cache: object, slots: int, tokens: int, way: Way) -> float:
    """One pass."""
    given = torch.ones((1, tokens), dtype=torch.long, device=model.device)
    model.module.set_attn_implementation(way[0])
    with patch.object(hugging_face, "FROM", way[1]):
        wait_for_device(model.device)
        began = time.perf_counter()
        run_causal_tokens(model, cache, [slots], given)
        wait_for_device(model.device)
    return time.perf_counter() - began


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", default=str(OUT), help="- for standard output")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Attention behind a long prefix",
        "",
        f"A pass of four blocks, {HEADS} heads of {WIDTH}, {options.dtype}, {options.device}, one "
        f"thread; medians of {ROUNDS} in turn (`python scripts/bench/long_prefixes.py`).",
        "",
        "| key heads | slots before | tokens | transformers', ms | heads packed, one mask, ms "
        "| in two parts, ms | over transformers' | over one mask |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for keys in (HEADS, HEADS // 3):
        model = model_of(keys, options)
        for slots in SLOTS:
            cache = model.allocate(1, slots + max(TOKENS))
            for tokens in TOKENS:
                point = model, cache, slots, tokens
                rounds = [[seconds(*point, way) for way in WAYS] for _ in range(ROUNDS + 1)]
                own, masked, split = (
                    1e3 * statistics.median(way) for way in zip(*rounds[1:], strict=True)
                )
                lines.append(
                    f"| {keys} | {slots:,} | {tokens} | {own:.1f} | {masked:.1f} | {split:.1f} | "
                    f"{split / own:.2f} | {split / masked:.2f} |"
                )
                print(lines[-1], flush=True)
    if options.out != "-":
        write_text(Path(options.out), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
