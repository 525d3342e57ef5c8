"""Published tables' speeds at true size: ``python scripts/gpu/random_pair.py``.

Needs torch and transformers only, and no weights: target and draft of the papers' architectures are
made of seeded noise on the device, one pair after the other. Each row of a pair's table (RSD,
experiment 1: 33 rows) accepts with the probability that gives its published block efficiency, and
does all the work that it would otherwise do, its own rule included. Prompts are random token ids,
interleaved across the rows. The CSV has the paper's A100 token rates beside ours, and how near each
row comes to the memory bandwidth and matmul throughput measured in the same run, and what
``scripts/gpu/plan.py`` expects of it; every speculative row says ``simulated``, and a pair that
does not fit is a row that says so. After ``--minutes`` no further prompt is begun, and the rows say
``partial``. ``--tiny`` is a rehearsal on a CPU that takes seconds.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.ceilings import Ceilings, attainment, measure_ceilings
from scripts.bench.launches_table import described, expectation
from scripts.gpu.random_pair_table import (
    PAIRS,
    measured,
    published_rows,
    show,
    simulated_settings,
    write_csv,
)
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.capture import COMPILE
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import DTYPES, ModelSpec, load_model
from spec_bench.engine.pass_counts import passes_of
from spec_bench.engine.pool import CachePool
from spec_bench.engine.random_weights import random_module
from spec_bench.engine.stopwatch import synchronise
from spec_bench.measure.bandwidth import free_bytes
from spec_bench.measure.pass_cost import model_cost
from spec_bench.records.types import Generation, Request

ROOT = Path(__file__).resolve().parents[2]

TEMPERATURE = 0.3  # of the paper's XSum and WMT tables
HEADROOM = 1.1  # of the weights' bytes: caches, activations


def random_requests(options: argparse.Namespace, vocab: int) -> list[Request]:
    """Prompts of random token ids that nothing ends before the limit."""
    draw = random.Random(options.seed)
    return [
        Request(
            str(number),
            tuple(draw.randrange(vocab) for _ in range(options.prompt_tokens)),
            options.new_tokens,
        )
        for number in range(options.prompts)
    ]


def load_pair(options: argparse.Namespace) -> tuple[HuggingFaceModel, HuggingFaceModel]:
    """Target and draft, of two seeds."""
    specs = (
        ModelSpec(
            f"random:{name}", options.dtype, options.device, None, None, options.compile, seed
        )
        for seed, name in enumerate((options.target, options.draft))
    )
    target, draft = (load_model(spec) for spec in specs)
    if target.vocab_size != draft.vocab_size:
        raise ValueError(f"{options.target} and {options.draft} have different vocabularies")
    return target, draft


def misfit(options: argparse.Namespace) -> str:
    """Why a pair does not fit into the free memory, from its parameter counts; "" where it does."""
    modules = [
        random_module(f"random:{name}", DTYPES[options.dtype], "meta", 0)
        for name in (options.target, options.draft)
    ]
    weights = sum(p.nbytes for module in modules for p in module.parameters())
    free = options.memory_gib * 2**30 or free_bytes(torch.device(options.device))
    if weights * HEADROOM <= free:
        return ""
    return f"{weights / 2**30:.1f} GiB of weights do not fit into {free / 2**30:.1f} GiB"


def ceilings_of(options: argparse.Namespace) -> Ceilings:
    """Measured in sizes for the device; a quarter of its free memory is streamed, at most 8 GiB."""
    device = torch.device(options.device)
    most, size = (2**33, 8192) if device.type == "cuda" else (2**30, 2048)
    if options.tiny:
        most, size = 2**24, 256

    def now_s() -> float:
        synchronise(device)
        return time.perf_counter()

    streamed = min(most, free_bytes(device) // 4)
    return measure_ceilings(device, DTYPES[options.dtype], streamed, size, 20, now_s)


def decode_pair(options: argparse.Namespace, ceilings: Ceilings) -> Iterator[list[dict[str, Any]]]:
    """Decodes every prompt with every row of a pair in turn; the table after each prompt."""
    target, draft = load_pair(options)
    sampling, pool = SamplingSettings(temperature=TEMPERATURE), CachePool()
    rows, asked = published_rows(options.table), random_requests(options, target.vocab_size)
    built = [
        build_decoder(simulated_settings(row), target, [draft], sampling, 1, pool) for row in rows
    ]
    costs = [model_cost(model.module, model.bytes_per_slot) for model in (target, draft)]
    known = [
        described(name, cost)
        for name, cost in zip((options.target, options.draft), costs, strict=True)
    ]
    cuda = options.device.startswith("cuda")
    settings = {
        "table": options.table,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name(options.device) if cuda else options.device,
        "compile": options.compile,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        **ceilings.columns(),
    }
    for decoder in built:
        decoder.reserve(decoder.slots_needed(options.prompt_tokens, options.new_tokens))
    for decoder in built:
        decoder.generate(asked[:1], options.seed)
    pool.prepare(1, options.prompt_tokens)
    before = passes_of((target, draft))
    law = f"{TEMPERATURE:g}", "1"
    done: list[list[Generation]] = [[] for _ in built]
    for number, request in enumerate(asked):
        if number and time.monotonic() > options.ends_s:
            return
        for place in range(len(built)):
            index = (place + number) % len(built)
            done[index] += built[index].generate([request], options.seed)
        now = passes_of((target, draft))
        ran = {"passes_of_all": (now - before).share, "refused": now.refused}
        yield [
            {
                **names(options),
                "status": "complete" if number + 1 == len(asked) else "partial",
                "reason": "",
                "decoder": row["decoder"],
                "spec": row["spec"],
                "lossless": decoder.lossless,
                **measured(row, rows[0], decoder, done[index], done[0]),
                **attainment(
                    ceilings,
                    *costs,
                    decoder.policy.shape.levels,
                    done[index],
                    options.prompt_tokens,
                ),
                **expectation(
                    options.expect or settings["device"],
                    (row["decoder"], row["spec"], law),
                    *known,
                    float(row["block_efficiency"]),
                    options.prompt_tokens + options.new_tokens / 2,
                    options.compile,
                ),
                **ran,
                **settings,
            }
            for index, (row, decoder) in enumerate(zip(rows, built, strict=True))
        ]


def names(options: argparse.Namespace) -> dict[str, str]:
    """The columns that name a pair."""
    return {"target": f"random:{options.target}", "draft": f"random:{options.draft}"}


def pair_options(options: argparse.Namespace, target: str) -> argparse.Namespace:
    """The options of one pair, draft and table filled in.

    Raises:
        ValueError: a target that the paper does not have, and no draft or table was named.
    """
    draft, table = PAIRS.get(target, (None, None))
    draft, table = options.draft or draft, options.table or table
    if not draft or not table:
        raise ValueError(f"{target!r} needs --draft and --table; only {', '.join(PAIRS)} have them")
    return argparse.Namespace(**{**vars(options), "target": target, "draft": draft, "table": table})


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the ceilings, then pair after pair; the CSV is rewritten after each prompt."""
    pairs = [pair_options(options, target) for target in options.targets]
    ceilings = ceilings_of(options)
    print(
        f"memory {ceilings.bytes_per_s / 1e9:.4g} GB/s ({ceilings.bandwidth_from}), "
        f"matmul {ceilings.flop_per_s / 1e12:.4g} TFLOP/s ({ceilings.matmul_from})",
        flush=True,
    )
    table: list[dict[str, Any]] = []
    for pair in pairs:
        gc.collect()  # what the pair before left
        if pair.compile != "none":
            torch.compiler.reset()
        if pair.device.startswith("cuda"):
            torch.cuda.empty_cache()
        rows, reason = [], misfit(pair)
        try:
            for rows in () if reason else decode_pair(pair, ceilings):
                write_csv(options.output, [*table, *rows])
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
        if reason:
            rows = [{**names(pair), "status": "failed", "reason": reason}]
        show(rows)
        table += rows
        write_csv(options.output, table)
    return table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ``--tiny`` sets what was not given to a size for a CPU."""
    tiny = "--tiny" in (sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="tiny architectures on the CPU")
    targets = ["llama_tiny", "opt_tiny"] if tiny else ["llama2_7b", "llama2_13b", "opt_30b"]
    parser.add_argument("--targets", nargs="+", default=targets, help="architectures, in turn")
    parser.add_argument("--draft", help="of all targets; that of the paper's pair if not given")
    parser.add_argument(
        "--table", type=int, help="of RSD, 1 to 54; XSum's of each pair if not given"
    )
    parser.add_argument(
        "--memory-gib", type=float, default=0, help="for weights; all that is free if not given"
    )
    parser.add_argument("--device", default="cpu" if tiny else "cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="float32" if tiny else "bfloat16")
    parser.add_argument("--compile", choices=COMPILE, default="none")
    parser.add_argument("--prompts", type=int, default=1 if tiny else 4)
    parser.add_argument("--prompt-tokens", type=int, default=16 if tiny else 512)
    parser.add_argument("--new-tokens", type=int, default=12 if tiny else 128)
    parser.add_argument("--minutes", type=float, default=6, help="then no prompt is begun")
    parser.add_argument(
        "--expect", help="GPU to expect the times of; the device's own if not given"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results") / "random_pair.csv")
    options = parser.parse_args(arguments)
    options.ends_s = time.monotonic() + 60 * options.minutes
    return options


if __name__ == "__main__":
    sys.exit(int(any(row.get("refused") for row in run(parse(None)))))
