"""Speed against transformers' own generation: ``make bench``.

Both sides run the same models on the same prompts with the same greedy tokens, interleaved prompt
by prompt with alternating order; the figure is the median over prompts of the ratio of their
seconds (above 1: ours is faster), prefill included on both sides. Timings depend on the machine
and its load, ratios of one run less so. Each pair runs with our forward pass as it is and captured
(``engine.compile``), which transformers offers for a static cache only and not with an assistant.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import (
    EMBEDDED,
    SPECS,
    Models,
    decoder,
    embedded_pair,
    embedded_requests,
)
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.decoder import Decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.plain import COMPILE
from spec_bench.engine.products import store_weights_by_column
from spec_bench.metrics import CellRecords, metric
from spec_bench.records.types import Generation, Request

GREEDY = SamplingSettings(temperature=0)


def opt_pair(how: str = "none", by_columns: bool = True) -> Models:
    """Random weights: OPT-125M's architecture, and its first two layers as the draft.

    Args:
        how: how the passes are captured.
        by_columns: whether weights are laid out as the loader does it, or as transformers does.
    """
    torch.manual_seed(0)
    config = OPTConfig(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072)
    target = OPTForCausalLM(config).eval()
    shallow = OPTConfig(**{**config.to_dict(), "num_hidden_layers": 2})
    draft = OPTForCausalLM(shallow).eval()
    draft.load_state_dict(target.state_dict(), strict=False)
    if by_columns:
        store_weights_by_column(target), store_weights_by_column(draft)
    cpu = torch.device("cpu")
    return tuple(HuggingFaceModel(m, config.vocab_size, cpu, how) for m in (target, draft))


def plain_embedded_pair() -> tuple[Any, Any]:
    """The embedded pair as transformers loads it, nothing of it changed."""
    folders = [EMBEDDED / "models" / name for name in ("target", "draft_distilled")]
    modules = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in folders
    ]
    target, draft = (SimpleNamespace(module=module) for module in modules)
    return target, draft


PAIRS = {"embedded": embedded_pair, "opt_125m": opt_pair}
# What transformers' own generation runs: the same models as transformers lays them out.
THEIRS = {"embedded": plain_embedded_pair, "opt_125m": partial(opt_pair, by_columns=False)}


def random_requests(count: int, new_tokens: int, vocab: int) -> list[Request]:
    """Random prompts of 64 tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, vocab, (count, 64), generator=generator).tolist()
    return [Request(str(i), tuple(prompt), new_tokens) for i, prompt in enumerate(ids)]


def requests_of(label: str, prompts: int, new_tokens: int, vocab: int) -> list[Request]:
    """A pair's prompts; half as many for the larger one."""
    if label == "embedded":
        return embedded_requests(prompts, new_tokens)
    return random_requests(max(2, prompts // 2), new_tokens, vocab)


def theirs(target: Any, draft: Any | None, **more: Any) -> Callable[[Request], list[int]]:
    """``generate``, assisted if there is a draft, at a constant draft length of 3."""
    arguments: dict = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if draft:
        settings = draft.module.generation_config
        settings.num_assistant_tokens = int(SPECS["sd"])
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
        settings.eos_token_id = None
        arguments["assistant_model"] = draft.module

    @torch.inference_mode()
    def run(request: Request) -> list[int]:
        ids = torch.tensor([request.prompt_ids])
        tokens = target.module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.max_new_tokens,
            min_new_tokens=request.max_new_tokens,
            **arguments,
            **more,
        )
        return tokens[0, ids.shape[1] :].tolist()

    return run


def ours(built: Decoder) -> Callable[[Request], list[int]]:
    """One of our decoders as a function of a request."""
    return lambda request: list(built.generate([request], seed=0)[0].tokens)


def compare(
    one: Callable[[Request], list[int]],
    other: Callable[[Request], list[int]],
    requests: Sequence[Request],
) -> tuple[list[float], int]:
    """Seconds of ``other`` over seconds of ``one`` per request, and how many answers are equal."""
    for request in requests[:2]:
        one(request), other(request)
    ratios, equal = [], 0
    for index, request in enumerate(requests):
        seconds, answers = {}, {}
        pair = (("one", one), ("other", other))
        for label, run in pair if index % 2 else pair[::-1]:
            start = time.perf_counter()
            answers[label] = run(request)
            seconds[label] = time.perf_counter() - start
        ratios.append(seconds["other"] / seconds["one"])
        equal += answers["one"] == answers["other"]
    return ratios, equal


def against_transformers(
    prompts: int, new_tokens: int, ways: Sequence[str], labels: Sequence[str]
) -> Table:
    """Our autoregressive and speculative decoding against transformers', pair by pair."""
    table = Table("pair", "compile", "ours", "theirs", "ratio", "quartiles", "equal")
    for label, how in itertools.product(labels, ways):
        pair = PAIRS[label]
        torch._dynamo.reset()
        target, draft = pair(how)
        plain, assistant = THEIRS[label]()
        requests = requests_of(label, prompts, new_tokens, target.vocab_size)
        for name, helper, rival in (
            ("ar", None, "generate"),
            ("sd", assistant, "generate(assistant_model)"),
        ):
            ratios, equal = compare(
                ours(decoder(name, (target, draft), GREEDY)), theirs(plain, helper), requests
            )
            low, median, high = statistics.quantiles(ratios, n=4)
            row = (
                *(label, how, f"{name} {SPECS[name]}", rival),
                *(f"{median:.2f}", f"{low:.2f}..{high:.2f}", f"{equal}/{len(requests)}"),
            )
            print(" | ".join(row), flush=True)
            table.add_row(*row)
    return table


def host_overheads(prompts: int, new_tokens: int, label: str = "embedded") -> Table:
    """Share of the decoding time outside forward passes, and speed against our own AR and MBSU."""
    target, draft = PAIRS[label]()
    requests = requests_of(label, prompts, new_tokens, target.vocab_size)
    sampling = SamplingSettings(temperature=0.3 if label == "embedded" else 1.0)
    built = {name: decoder(name, (target, draft), sampling) for name in SPECS}
    records: dict[str, list[Generation]] = {name: [] for name in SPECS}
    for run in built.values():
        run.generate(requests[:1], 0)
    for index, request in enumerate(requests):
        names = list(SPECS)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            records[name] += built[name].generate([request], 0)
    columns = ("host overhead", "block efficiency", "MBSU", "speedup over ar", "attained")
    table = Table("decoder", "spec", *columns, title=label)
    for name, generations in records.items():
        one = built[name]
        cell = CellRecords(
            generations,
            records["ar"],
            draft_calls=one.draft_calls,
            parameter_ratio=one.parameter_ratio,
        )
        tau, bound = metric["block_efficiency"].value(cell), metric["mbsu"].value(cell)
        faster, host = metric["speedup"].value(cell), metric["host_overhead"].value(cell)
        numbers = (f"{value:.2f}" for value in (tau, bound, faster))
        table.add_row(name, SPECS[name], f"{host:.1%}", *numbers, f"{faster / bound:.0%}")
    return table


def main() -> None:
    """Runs both comparisons and prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's choice")
    parser.add_argument("--compile", nargs="+", choices=COMPILE, default=["none", "dynamo"])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console(width=110)
    console.print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, float32, batch 1")
    console.print("ratio > 1: ours is faster")
    console.print(
        against_transformers(options.prompts, options.new_tokens, options.compile, options.pairs)
    )
    for label in options.pairs:
        console.print(host_overheads(options.prompts, options.new_tokens, label))


if __name__ == "__main__":
    main()
