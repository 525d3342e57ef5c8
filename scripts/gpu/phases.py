"""Where a recorded iteration's time goes, phase by phase: ``python3 scripts/gpu/phases.py``.

Needs torch, transformers and pydantic, no weights. Part ``kernels`` times inside a graph what
iterations are made of: small kernels, products of both pairs' shapes by tokens and dtype,
attention, scans over a vocabulary, norms. Parts ``smollm2`` and ``7b`` record iterations of
decoders over noise of these sizes and give the milliseconds of a replay, those with the host's
share, and what its kernels take in each phase: the function that was recorded is called once within
named ranges, and a replay launches the same kernels in the same order. Tables are written row by
row; the same command goes on where it ended. ``--tiny`` rehearses on a CPU, where a graph is a call
and kernels are operators.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile, record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.gpu.reference import as_graph, synchronise
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import apply_tree_shorthand, build_decoder
from spec_bench.decode.recording import IterationGraph
from spec_bench.engine.cache import CachePool
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.records.types import Request
from spec_bench.system.files import read_csv, write_csv, write_redacted_json

CONF = Path(__file__).resolve().parents[2] / "conf" / "decoder"
KERNELS, PHASES, NAMES = "gpu-kernels.csv", "gpu-phases.csv", "gpu-phases-kernels.csv"
# hidden, inner, layers, heads, key heads, vocabulary
SIZES = {
    "smollm2": (576, 1536, 30, 9, 3, 49152),
    "smollm2 draft": (320, 768, 4, 5, 5, 49152),
    "7b": (4096, 11008, 32, 32, 32, 32000),
    "7b draft": (768, 3072, 12, 12, 12, 32000),
    "tiny": (64, 128, 2, 4, 2, 512),
}
SMALL = ("ar", "sd:3", "prompt_lookup:1x10", "rsd_c:2-1-1", "rsd_s:2x3", "spectr:2x3")
LARGE = ("ar", "sd:5", "rsd_s:12x5")
# by part: dtype, engine.compile, temperature, tokens of the prompt, cells
PLAN: dict[str, list[tuple[str, str, float, int, Sequence[str]]]] = {
    "smollm2": [
        ("float32", "static", 0.0, 150, SMALL),
        ("float32", "static_inductor", 0.0, 150, SMALL[:2]),
        ("bfloat16", "static", 0.0, 150, SMALL[:2]),
    ],
    "7b": [
        ("bfloat16", "static", 0.3, 512, LARGE),
        ("bfloat16", "static_inductor", 0.3, 512, LARGE),
    ],
}
SHOWN = 40  # kernels of an iteration that are named, those that take longest
Row = dict[str, Any]


def median_us(run: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """Median microseconds of a call, the device's work included."""
    found = []
    for _ in range(repeats + 3):
        synchronise(device)
        began = time.perf_counter()
        run()
        synchronise(device)
        found.append(1e6 * (time.perf_counter() - began))
    return sorted(found[3:])[repeats // 2]


def each_us(works: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Microseconds of one of several like calls within a graph."""
    kept: list[object] = []  # or the memory of one is the next one's
    empty = torch.zeros(1, device=device)
    least = median_us(as_graph(lambda: empty.add_(1), device), device)
    whole = median_us(as_graph(lambda: kept.extend([w() for w in works]), device), device)
    return (whole - least) / max(1, len(works) - 1)


def small_parts(device: torch.device, many: int) -> Iterator[tuple[str, list[Any]]]:
    """What an iteration does beside products and attention, each several times."""
    for count in (8, 4096, 49152):
        x = torch.ones(count, device=device)
        yield f"add_ of {count}", [lambda x=x: x.add_(1)] * many
    for vocab in (32000, 49152):
        for rows in (1, 2, 12):
            law = torch.randn(1, rows, vocab, device=device).softmax(dim=-1)
            wide = law.double()
            for name, work in {
                "double": lambda law=law: law.double(),
                "cumsum float64": lambda wide=wide: wide.cumsum(dim=-1),
                "cummax float64": lambda wide=wide: wide.cummax(dim=-1),
                "topk 12": lambda law=law: law.topk(12),
                "softmax": lambda law=law: law.softmax(dim=-1),
                "log_softmax": lambda law=law: law.log_softmax(dim=-1),
                "argmax": lambda law=law: law.argmax(dim=-1),
                "amax": lambda law=law: law.amax(dim=-1),
            }.items():
                yield f"{name} of {rows} x {vocab}", [work] * max(2, many // 10)
    for width, dtype in ((576, torch.float32), (4096, torch.bfloat16)):
        x = torch.randn(1, 4, width, device=device, dtype=dtype)
        norm = lambda x=x, width=width: rms_norm(x, (width,), x[0, 0])  # noqa: E731
        yield f"rms_norm of {width} {str(dtype)[6:]}", [norm] * many


def products(device: torch.device, tiny: bool) -> Iterator[tuple[str, list[Any]]]:
    """Products of the models' shapes, each with several matrices, so that none stays in a cache."""
    for name in ("tiny",) if tiny else ("smollm2", "7b", "7b draft"):
        hidden, inner, _, heads, keys, vocab = SIZES[name]
        joined = hidden // heads * (heads + 2 * keys)
        shapes = {
            "q k v": (joined, hidden), "o": (hidden, hidden), "gate up": (2 * inner, hidden),
            "down": (hidden, inner), "head": (vocab, hidden),
        }  # fmt: skip
        both = (torch.float32, torch.bfloat16) if name == "smollm2" else (torch.bfloat16,)
        for dtype in both:
            for part, (outer, width) in shapes.items():
                copies = 2 if tiny else int(4e8 // (outer * width * dtype.itemsize))
                copies = max(2, min(60, copies))
                where: dict[str, Any] = {"device": device, "dtype": dtype}
                matrices = [
                    torch.randn(outer, width, **where) for _ in range(2 if tiny else copies)
                ]
                for tokens in (1, 4, 7, 11, 61):
                    x = torch.randn(1, tokens, width, **where)
                    said = f"{name} {part} {str(dtype)[6:]}, {tokens} tokens"
                    yield said, [lambda x=x, m=matrix: linear(x, m) for matrix in matrices]


def attentions(device: torch.device, many: int) -> Iterator[tuple[str, list[Any]]]:
    """Attention of several queries over a cache, with a mask and without."""
    for heads, width, slots, dtype in (
        (3, 64, 256, torch.float32), (3, 64, 1024, torch.float32), (3, 64, 256, torch.bfloat16),
        (32, 128, 640, torch.bfloat16), (12, 64, 640, torch.bfloat16),
    ):  # fmt: skip
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        key = torch.randn(1, heads, slots, width, **where)
        for count in (1, 3, 12, 61):
            query = torch.randn(1, heads, count, width, **where)
            said = f"attention, {heads} heads of {width}, {slots} slots, {count} queries"
            for kind, mask in (("mask", torch.zeros(1, 1, count, slots, **where)), ("none", None)):
                work = lambda q=query, k=key, m=mask: scaled_dot_product_attention(q, k, k, m)  # noqa: E731
                yield f"{said}, {str(dtype)[6:]}, mask: {kind}", [work] * max(2, many // 4)


@torch.inference_mode()
def time_kernels(out: Path, device: torch.device, tiny: bool, ends_s: float) -> bool:
    """Writes microseconds by name; returns whether it got to the end."""
    file, many = out / KERNELS, 4 if tiny else 200
    rows: list[Row] = [*read_csv(file)]
    done = {row["name"] for row in rows}
    sources = products(device, tiny), attentions(device, many), small_parts(device, many)
    for name, works in (each for source in sources for each in source):
        if name in done:
            continue
        if time.monotonic() > ends_s:
            return False
        rows.append({"name": name, "us": round(each_us(works, device), 2), **where_ran(device)})
        print(f"{name}: {rows[-1]['us']} us", flush=True)
        write_csv(file, rows, list(rows[0]))
    return True


def where_ran(device: torch.device) -> Row:
    """The columns that say on what a row was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__}


# Iterations: which kernel belongs to which phase.


class Phases:
    """Marks the phases of a decoder's iteration while it is ``on``."""

    def __init__(self, decoder: Any) -> None:
        self.on = False
        self._mark(decoder.draft_state, "root_logits", "draft")
        self._mark(decoder.draft_state, "frontier_logits", "draft")
        self._mark(decoder._scorer, "score", "target")
        self._mark(decoder, "walk", "walk")
        self._mark(decoder, "keep", "keep")

    def _mark(self, owner: Any, name: str, phase: str) -> None:
        inner = getattr(owner, name, None)

        def marked(*given: Any, **named: Any) -> Any:
            if not self.on:
                return inner(*given, **named)  # type: ignore[misc]
            with record_function(f"phase {phase}"):
                return inner(*given, **named)  # type: ignore[misc]

        if inner is not None:
            setattr(owner, name, marked)


def kernels_of(run: Callable[[], object], device: torch.device) -> list[tuple[str, float, str]]:
    """Returns name, microseconds and phase of every kernel that a call launches, in order."""
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device.type == "cuda")]
    synchronise(device)
    with profile(activities=kinds) as profiled:
        run()
        synchronise(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    ranges = [
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix("phase "))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("phase ")
    ]

    def phase(at: float) -> str:
        inside = [(end - start, name) for start, end, name in ranges if start <= at <= end]
        return min(inside, default=(0, "grow and tell"))[1]

    if device.type != "cuda":
        done = [event for event in events if event.get("cat") == "cpu_op"]
        sent = {}
    else:
        done = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        sent = {
            event["args"]["correlation"]: event["ts"]
            for event in events
            if event.get("cat") in ("cuda_runtime", "cuda_driver")
            and "correlation" in event.get("args", {})
        }
    return [
        (each["name"], each["dur"], phase(sent.get(each["args"].get("correlation"), each["ts"])))
        for each in sorted(done, key=lambda each: each["ts"])
    ]


def noise(name: str, dtype: str, how: str, device: torch.device, folder: Path) -> Any:
    """Returns a Llama of such sizes, loaded as a job loads it."""
    hidden, inner, layers, heads, keys, vocab = SIZES[name]
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "vocab_size": vocab, "max_position_embeddings": 4096,
        "tie_word_embeddings": name.startswith("smollm2"),
    }  # fmt: skip
    home = folder / name.replace(" ", "-")
    write_redacted_json(home / "config.json", config)
    return load_model(ModelSpec(f"random:{home}", dtype=dtype, device=device.type, compile=how))


def measure(decoder: Any, prompt: int, device: torch.device) -> tuple[Row, list[Row], list[Row]]:
    """Returns an iteration's times, what each phase takes, and its longest kernels."""
    asked = [Request("p", tuple(range(3, 3 + prompt)), 64)]
    found: Row = {}
    call: Callable[[], object]
    with torch.inference_mode():
        active = decoder.prefill_requests(asked, 0)  # which makes what drafts
        phases = Phases(decoder)
        if device.type == "cuda":
            count = sum(each for _, each in decoder.draw_requests)
            numbers = torch.rand(1, count, dtype=torch.float64, device=device)
            room = decoder._slots - decoder.policy.cache_slots
            compiled = decoder.make_compiled_iteration()
            graph = IterationGraph(decoder, 1, room, numbers, compiled)
            _, known = decoder.make_dummy_inputs(1, prompt + 8)
            graph.replay(known)
            call, replay = graph._iteration, graph._graph.replay
            found["with_host_ms"] = round(median_us(lambda: graph.replay(known), device) / 1e3, 4)
        else:
            call = replay = lambda: active[0].finish or decoder.step(active)
        few = 3 if device.type == "cpu" else 30
        found["replay_ms"] = round(median_us(replay, device, few) / 1e3, 4)
        phases.on = True
        called = kernels_of(call, device)
        phases.on = device.type == "cpu"
        played = kernels_of(replay, device)
    same = [name for name, *_ in called] == [name for name, *_ in played]
    if len(called) == len(played):
        played = [(*one[:2], own[2]) for one, own in zip(played, called, strict=True)]
    found |= {"kernels": len(played), "same_order": same}
    by_phase, by_name = (
        _sums(played, lambda one: one[2]),
        _sums(played, lambda one: one[2:] + one[:1]),
    )
    rows = [{"phase": key, "kernels": n, "ms": round(us / 1e3, 4)} for key, n, us in by_phase]
    names = [
        {"phase": key[0], "kernel": key[1][:120], "times": n, "us": round(us, 1)}
        for key, n, us in by_name[:SHOWN]
    ]
    return found, rows, names


def _sums(
    played: Sequence[tuple[str, float, str]], key: Callable[[Any], Any]
) -> list[tuple[Any, int, float]]:
    """Returns how many kernels and how many microseconds have each key, the longest first."""
    sums: dict[Any, tuple[int, float]] = {}
    for one in played:
        count, us = sums.get(key(one), (0, 0.0))
        sums[key(one)] = count + 1, us + one[1]
    return sorted(((k, n, us) for k, (n, us) in sums.items()), key=lambda each: -each[2])


def time_iterations(
    part: str, out: Path, device: torch.device, tiny: bool, ends_s: float
) -> tuple[bool, bool]:
    """Measures what the tables lack of a part; returns whether it got to the end, without error."""
    whole: list[Row] = [*read_csv(out / PHASES)]
    names: list[Row] = [*read_csv(out / NAMES)]
    keys = ("pair", "dtype", "compile", "temperature", "cell")
    done = {tuple(str(row[key]) for key in keys) for row in whole}
    good = True
    for dtype, how, temperature, prompt, cells in PLAN[part]:
        wanted = [
            dict(zip(keys, (part, dtype, how, temperature, cell), strict=True))
            for cell in (cells[:3] if tiny else cells)
        ]
        wanted = [each for each in wanted if tuple(map(str, each.values())) not in done]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            sizes = ("tiny", "tiny") if tiny else (part, f"{part} draft")
            way = "none" if tiny else how
            models = [noise(name, dtype, way, device, Path(folder)) for name in sizes]
        for row in wanted:
            if time.monotonic() > ends_s:
                return False, good
            try:
                name, _, spec = row["cell"].partition(":")
                file = CONF / f"{name}.yaml"
                settings = apply_tree_shorthand(
                    yaml.safe_load(file.read_text("utf-8")), spec or None
                )
                drafts = models[1:] if settings["drafter"]["kind"] == "language_model" else []
                sampling = SamplingSettings(temperature)
                built = build_decoder(settings, models[0], drafts, sampling, 1, CachePool())
                times, phases, longest = measure(built, 20 if tiny else prompt, device)
            except Exception as error:  # one decoder must not end a part
                print(*row.values(), f"{type(error).__name__}: {error}"[:300], flush=True)
                good = False
                continue
            # Where nothing may be profiled, an iteration's times are left.
            whole += [{**row, **times, **phase, **where_ran(device)} for phase in phases or [{}]]
            names += [{**row, **each} for each in longest]
            print(row, times, phases, flush=True)
            columns = list(dict.fromkeys(key for each in whole for key in each))
            write_csv(out / PHASES, whole, columns)
            if names:
                write_csv(out / NAMES, names, list(names[0]))
        del models
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True, good


def main() -> int:
    """Measures the parts that are named; 1 if something failed or is left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the tables")
    parser.add_argument(
        "--parts", nargs="+", choices=["kernels", *PLAN], default=["kernels", *PLAN]
    )
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.tiny else "cuda")
    ends_s = time.monotonic() + 60 * options.minutes
    good = True
    for part in options.parts:
        if part == "kernels":
            good &= time_kernels(options.output, device, options.tiny, ends_s)
        else:
            good &= all(time_iterations(part, options.output, device, options.tiny, ends_s))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
