"""Draft heads at true size: ``python scripts/gpu/heads.py``.

Needs torch, transformers and pydantic only, and no weights: a target of random weights (OPT-1.3B's
architecture) is made on the device. Two parts, a CSV each:

1. Training a recurrent head on it for some hundred steps, hidden states computed on the fly from
   random tokens: milliseconds and tokens per second of the target's pass and of the head's step,
   and peak memory. With random weights there is nothing to learn but the frequencies of tokens, so
   the loss says only that the step works.
2. ReDrafter's Figure 6: speed of a request and throughput against the batch size, for
   autoregressive decoding, SD and RSD-S with a draft model, and the recurrent head with and without
   merged prefixes. Acceptance is simulated at a stated rate per level; every speculative row says
   so.

``--tiny`` is a rehearsal on a CPU that takes seconds.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import how_it_ran, prepare
from scripts.gpu.random_pair import device_name, random_requests
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import AnyDecoder, build_decoder
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape
from spec_bench.engine.cache import CachePool
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.model import wait_for_device
from spec_bench.engine.plain import COMPILE
from spec_bench.system import files
from spec_bench.train.training_heads import TrainableHead, compute_decay_powers

ROOT = Path(__file__).resolve().parents[2]

GUESSES = 5
_LM = {"kind": "language_model"}
_RECURSIVE = {"rule": "recursive_rejection", "replacement": False}
_BEAM = {"policy": "head_beams", "depth": GUESSES}


def decoders(acceptance: float) -> dict[str, dict[str, Any]]:
    """What Figure 6 compares, by label; acceptance is stated, the rules are computed though."""
    stated = {"rule": "simulated", "acceptance": acceptance, "computed": _RECURSIVE}
    ar = {"drafter": {"kind": "none"}, "tree": {"policy": "root"}, "verifier": _RECURSIVE}
    made = {
        "ar -": ar,
        "sd 3": {"drafter": _LM, "tree": {"policy": "chain", "depth": 3}, "verifier": stated},
        "rsd_s 4x3": {
            "drafter": _LM,
            "tree": {"policy": "stochastic_beam", "width": 4, "depth": 3},
            "verifier": stated,
        },
    }
    for width, merged in ((2, True), (8, True), (8, False)):
        made[f"redrafter {width}x{GUESSES}{'' if merged else ' apart'}"] = {
            "drafter": {"kind": "redrafter"},
            "tree": {**_BEAM, "width": width},
            "verifier": stated,
            "tree_attention": merged,
        }
    return {label: {"name": label.split()[0], **settings} for label, settings in made.items()}


def train(target: HuggingFaceModel, head: RecurrentHead, options: argparse.Namespace) -> list[dict]:
    """Trains the head for some steps on random tokens; one row."""
    device = target.device
    trainee = TrainableHead(head.float(), GUESSES).to(device).train()
    optimiser = torch.optim.AdamW(trainee.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(options.seed)
    shape = (options.train_rows, options.train_length)
    weights = compute_decay_powers(1.0, GUESSES).to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    losses, target_s, step_s = [], 0.0, 0.0
    for step in range(options.steps + 1):
        ids = torch.randint(0, target.vocab_size, shape, generator=generator).to(device)
        wait_for_device(device)
        start_s = time.perf_counter()
        with torch.no_grad():
            output = target.module(input_ids=ids, output_hidden_states=True, logits_to_keep=1)
            hidden = output.hidden_states[-1]
            embedded = target.embed(ids)
        wait_for_device(device)
        passed_s = time.perf_counter()
        windows = ids.shape[1] - GUESSES - 1
        at = torch.arange(windows, device=device)[:, None] + torch.arange(GUESSES, device=device)
        x = hidden[:, :windows].flatten(0, 1).float()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            found = trainee(
                x, embedded[:, at + 1].flatten(0, 1).float(), ids[:, at + 2].flatten(0, 1)
            )
        loss = (found.loss / x.shape[0] * weights).sum()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        wait_for_device(device)
        losses.append(float(loss.detach()) / GUESSES)
        if step:  # the first warms up
            target_s += passed_s - start_s
            step_s += time.perf_counter() - passed_s
    tokens = options.steps * ids.numel()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return [
        {
            "steps": options.steps,
            "tokens_per_step": ids.numel(),
            "head_parameters": head.parameter_count,
            "target_pass_ms": 1e3 * target_s / options.steps,
            "head_step_ms": 1e3 * step_s / options.steps,
            "tokens_per_s": tokens / (target_s + step_s),
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "peak_memory_gib": peak / 2**30,
        }
    ]


def batches(
    target: HuggingFaceModel, draft: HuggingFaceModel, head: RecurrentHead,
    options: argparse.Namespace,
) -> list[dict]:  # fmt: skip
    """Figure 6: every decoder at every batch size, all decoders of a size in turn."""
    sampling, pool, rows = SamplingSettings(temperature=0.0), CachePool(), []
    head = head.to(target.embed(torch.zeros(1, dtype=torch.long)).dtype).eval()
    for size in options.batch_sizes:
        requests = random_requests(options, size, target.vocab_size)
        built: dict[str, AnyDecoder] = {
            label: build_decoder(
                settings,
                target,
                [draft] if settings["drafter"]["kind"] == "language_model" else [],
                sampling,
                size,
                pool,
                head if settings["drafter"]["kind"] == "redrafter" else None,
            )
            for label, settings in decoders(options.acceptance).items()
        }
        prepare(built.values(), requests)
        for label, decoder in built.items():
            done = decoder.generate(requests, options.seed)
            decode_s = sum(g.decode_s for g in done)
            latency_s = sum(g.latency_s or 0.0 for g in done)
            tokens = sum(len(g.tokens) for g in done)
            steps = [step for g in done for step in g.steps]
            rows.append(
                {
                    "decoder": label,
                    "batch_size": size,
                    "lossless": decoder.lossless,
                    "block_efficiency": sum(s.accepted + 1 for s in steps) / len(steps),
                    "nodes_per_call": sum(s.nodes for s in steps) / len(steps),
                    "throughput": tokens / decode_s,
                    "token_rate_per_request": tokens / latency_s,
                    **how_it_ran(decoder),
                }
            )
            print({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in rows[-1].items()})
    return rows


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], origin: Mapping[str, Any]) -> None:
    """One file, with where it was measured in every row."""
    files.write_csv(path, [{**row, **origin} for row in rows], [*rows[0], *origin])
    print(path)


def main() -> None:
    """Trains, decodes, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="opt_1.3b")
    parser.add_argument("--draft", default="opt_125m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile", choices=COMPILE, default="static")
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--train-rows", type=int, default=8)
    parser.add_argument("--train-length", type=int, default=512)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks")
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    options = parser.parse_args()
    if options.tiny:
        tiny = {"target": "opt_tiny", "draft": "opt_tiny", "device": "cpu", "dtype": "float32"}
        small = {"steps": 3, "train_rows": 2, "train_length": 24, "new_tokens": 8}
        for name, value in {**tiny, **small, "prompt_tokens": 8, "batch_sizes": [1, 3]}.items():
            setattr(options, name, value)
    target, draft = (
        load_model(
            ModelSpec(
                f"random:{name}", options.dtype, options.device, compile=options.compile, seed=seed
            )
        )
        for seed, name in enumerate((options.target, options.draft))
    )
    torch.manual_seed(options.seed)
    with torch.device(target.device):
        head = RecurrentHead(RecurrentShape(target.hidden_size, target.vocab_size, 2))
    origin = {
        "target": f"random:{options.target}",
        "draft": f"random:{options.draft}",
        "simulated_acceptance": options.acceptance,
        "dtype": options.dtype,
        "compile": options.compile,
        "device": device_name(options),
    }
    write_csv(options.output / "heads-training.csv", train(target, head, options), origin)
    write_csv(options.output / "heads-batches.csv", batches(target, draft, head, options), origin)


if __name__ == "__main__":
    main()
