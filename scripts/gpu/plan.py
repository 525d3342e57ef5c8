"""What the papers' decoders should take on an A100, an H100 and an H200, beside what was printed.

For each published pair the first table (task) that has speeds: launches and bytes of an iteration,
the time that the bytes alone take, and expected milliseconds and tokens/s by the model of
``scripts/bench/expected.py``, with eager passes and with replayed ones. Tokens per iteration are
the paper's block efficiency; without one there are no expected tokens/s. One sequence, two bytes a
number, ``CONTEXT`` tokens before the root. Needs torch and transformers only, loads no weights, and
reads the launches that ``scripts/bench/count_launches.py`` counted: ``python scripts/gpu/plan.py``.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.expected import bound_s, iteration_s
from scripts.bench.launches_table import (
    Model,
    Outside,
    described,
    law_of,
    outside,
    spec_of,
    stretches,
)
from spec_bench.draft.eagle_network import Eagle1Head, Eagle3Head
from spec_bench.draft.eagle_shape import EagleShape
from spec_bench.draft.medusa import MedusaHeads, MedusaShape
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape
from spec_bench.engine.random_weights import ARCHITECTURES, random_config, random_module
from spec_bench.measure.bound import GPUS, Gpu
from spec_bench.measure.pass_cost import model_cost
from spec_bench.system import files
from spec_bench.vocabulary.published import FILE, Row, read_published, side_by_side

ROOT = Path(__file__).resolve().parents[2]

CONTEXT = 576  # 512 of the prompt and half of 128 new ones
SHOWN = ("A100", "H100", "H200")
# What each paper measured on, as it says; of EAGLE only Spec-Bench's table does.
PAPERS = {"rsd": "A100", "mcsd": "A6000", "dsbd": "L40", "redrafter": "H100", "eagle": ""}
TABLES = {("eagle", "3"): "A100"}
EAGLE3_VOCAB = 32000  # tokens that published EAGLE-3 heads know
SPEEDS = ("token_rate", "speedup")
OUT = ROOT / "results" / "benchmarks"


def architecture_of(printed: str) -> str:
    """A model's name as papers print it, as the name of an architecture.

    >>> architecture_of("Llama-2-Chat-7B"), architecture_of("OPT-125M")
    ('llama2_7b', 'opt_125m')
    >>> architecture_of("LLaMA-Instruct 3.3 70B"), architecture_of("DeepSeek-R1-Distill-LLaMA 8B")
    ('llama3_70b', 'llama3_8b')
    """
    name = printed.lower().replace("-chat", "").replace("-iml", "")
    if released := re.search(r"llama(?:-instruct)? (?:3\.\d )?(\d+b)", name):
        return f"llama3_{released[1]}"
    name = name.replace("llama-2-", "llama2_").replace("-", "_")
    return name if name in ARCHITECTURES else name.replace("llama2", "llama")  # drafts


@cache
def model_of(name: str) -> Model:
    """An architecture in bfloat16, without weights."""
    module = random_module(f"random:{name}", torch.bfloat16, "meta", 0)
    config = module.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = config.hidden_size // config.num_attention_heads
    slot = 2 * 2 * config.num_hidden_layers * heads * width
    return described(name, model_cost(module, slot))


def head_bytes(decoder: str, target: str, depth: int) -> float:
    """Bytes that draft heads read in an iteration; all but Medusa's are read once a level."""
    config = random_config(f"random:{target}")
    size = config.hidden_size, config.vocab_size
    with torch.device("meta"):
        if decoder.startswith("medusa"):
            return 2.0 * sum(p.numel() for p in MedusaHeads(MedusaShape(*size, 4)).parameters())
        if decoder.startswith("redrafter"):
            head = RecurrentHead(RecurrentShape(*size))
            return 2.0 * depth * sum(p.numel() for p in head.parameters())
        return 2.0 * depth * eagle_parameters(decoder, config)


def eagle_parameters(decoder: str, config: Any) -> int:
    """What an EAGLE head of the target's sizes reads a level; EAGLE-1's borrows the last layer."""
    version: Literal[1, 3] = 3 if decoder == "eagle3" else 1
    hidden, heads = config.hidden_size, config.num_attention_heads
    own_vocab = EAGLE3_VOCAB if version == 3 else config.vocab_size
    shape = EagleShape(
        *(version, hidden, hidden, config.vocab_size, own_vocab, heads),
        *(config.num_key_value_heads, hidden // heads, config.intermediate_size),
    )
    if version == 3:
        return Eagle3Head(shape, torch.arange(own_vocab)).parameter_count
    return Eagle1Head(shape).parameter_count + config.vocab_size * hidden


def cells(paper: str) -> Iterator[Row]:
    """Printed cells with a speed and a tree: of each pair those of its first table and law.

    Decoders that are not in it come from their own first one. A table on a machine that is known
    comes before others.
    """
    first: dict[tuple[str, str], tuple[str, ...]] = {}
    own: dict[tuple[tuple[str, str], str], tuple[str, ...]] = {}
    rows = side_by_side(read_published(ROOT / "experiments" / paper / FILE))
    drafts = {row["target"]: row["draft"] for row in reversed(rows) if row["draft"]}
    for row in sorted(rows, key=lambda row: not machine(paper, row)):
        if not row["target"] or not any(row.get(speed) for speed in SPEEDS):
            continue
        if (row["decoder"], spec_of(row), law_of(row)) not in outside():
            continue
        pair = row["target"], row["draft"] or drafts.get(row["target"], "")
        table = row["table"], row["task"], row["temperature"]
        whole = first.setdefault(pair, table)
        if own.setdefault((pair, row["decoder"]), table) == table or whole == table:
            yield row


def machine(paper: str, row: Row) -> str:
    """The GPU that a printed row was measured on; "" where nothing says so."""
    return TABLES.get((paper, row["table"]), PAPERS[paper])


def planned(paper: str, row: Row, gpus: tuple[Gpu, ...]) -> dict[str, Any]:
    """One line of the table."""
    one = outside()[row["decoder"], spec_of(row), law_of(row)]
    target = architecture_of(row["target"])
    draft = architecture_of(row["draft"]) if row["draft"] and one.draft_passes else ""
    eager, static = (parts_of(one, target, draft, static=how) for how in (False, True))
    tau = 1.0 if row["decoder"] == "ar" else float(row.get("block_efficiency") or "nan")
    found: dict[str, Any] = {
        "paper": paper,
        **{name: row[name] for name in ("table", "target", "draft", "task", "temperature")},
        "decoder": row["decoder"],
        "spec": spec_of(row),
        "launches": sum(each.launches for each in eager),
        "launches_replayed": sum(each.launches for each in static),
        "read_gb": sum(each.moved_bytes for each in eager) / 1e9,
        "paper_block_efficiency": row.get("block_efficiency", ""),
    }
    for gpu in gpus:
        numbers = {
            "gpus": gpus_for(target, draft, gpu),
            "bound_ms": 1e3 * bound_s(eager, gpu),
            "eager_ms": 1e3 * iteration_s(eager, gpu),
            "replayed_ms": 1e3 * iteration_s(static, gpu),
        }
        for how in ("eager", "replayed"):
            rate = 1e3 * tau / numbers[f"{how}_ms"]
            numbers[f"{how}_tokens_s"] = "" if math.isnan(rate) else rate
        found |= {f"{gpu.name}_{name}": value for name, value in numbers.items()}
    known = machine(paper, row)
    found |= {"paper_gpu": known, **{f"paper_{s}": row.get(s, "") for s in SPEEDS}}
    for how, parts in (("eager", eager), ("replayed", static)):
        rate = tau / iteration_s(parts, GPUS[known]) if known else math.nan
        found[f"paper_gpu_{how}_tokens_s"] = "" if math.isnan(rate) else rate
    return found


def parts_of(one: Outside, target: str, draft: str, *, static: bool) -> list[Any]:
    """An iteration's stretches."""
    heads = head_bytes(one.decoder, target, len(one.counts)) if one.heads else 0.0
    drafting = model_of(draft) if draft else None
    return stretches(one, model_of(target), drafting, heads, CONTEXT, static=static)


def gpus_for(target: str, draft: str, gpu: Gpu) -> int:
    """How many GPUs hold the weights in 85% of their memory; layers run one after another."""
    weights = sum(model_of(name).cost.weight_bytes for name in (target, draft) if name)
    return max(1, math.ceil(weights / (0.85 * gpu.memory_bytes)))


def table() -> list[dict[str, Any]]:
    """All lines; several methods of a paper with one tree are one."""
    gpus = tuple(GPUS[name] for name in SHOWN)
    keys = ("paper", "table", "target", "draft", "decoder", "spec")
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for paper in PAPERS:
        for row in cells(paper):
            line = planned(paper, row, gpus)
            lines.setdefault(tuple(line[key] for key in keys), line)
    return list(lines.values())


def page(rows: list[dict[str, Any]]) -> str:
    """The table in short, as Markdown: of each pair the autoregressive row and each decoder's best.

    Best is what was printed fastest.
    """
    lines = [
        "# What the papers' decoders should take on a GPU",
        "",
        "Expected, not measured: `make plan-gpu` (`scripts/gpu/plan.py`) adds up 6 µs of the host "
        "for each launch, 2.2 µs of the GPU for each small kernel, and the bytes of weights, keys "
        "and values over the memory's nominal bandwidth (A100 2.0, H100 3.35, H200 4.8 TB/s); host "
        "and GPU work at once within a stretch of an iteration. Launches are counted on a "
        "simulated device (`launches.csv`, `launches-passes.csv`). One sequence, bfloat16, "
        f"{CONTEXT} tokens before the root; tokens/s take the paper's block efficiency. *Replayed*:"
        " the models' passes are CUDA graphs, all else is launched one by one. A target on several "
        "GPUs runs layer after layer. The papers' codes are their own: where theirs is slower than "
        "*eager*, it launched more or waited. Printed rates: RSD on A100s, ReDrafter on an H100, "
        "DSBD on an L40; MCSD prints speed-ups only (RTX A6000), and so do EAGLE's figures (on "
        "machines that the figures do not name) and Spec-Bench's table of EAGLE's heads (an A100). "
        "Heads are of the target's sizes and are read once a level. Of each pair the first printed "
        "table of a known machine, of a decoder that is not in it its own first one, and of each "
        "decoder the tree printed as fastest; all rows are in `plan-gpu.csv`.",
        "",
        "| target | draft | decoder | tree | launches | replayed | GB | "
        + " | ".join(f"{gpu} bound / eager / replayed ms" for gpu in SHOWN)
        + " | "
        + " | ".join(f"{gpu} tokens/s" for gpu in SHOWN)
        + " | paper's GPU: expected | printed |",
        "| --- | --- | --- | --- | --: | --: | --: |" + " --: |" * (2 * len(SHOWN) + 2),
    ]
    return "\n".join([*lines, *(_line(row) for row in best(rows))]) + "\n"


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each pair and decoder the row that was printed fastest."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("paper", "target", "draft", "decoder"))
        if key not in found or _printed(row) > _printed(found[key]):
            found[key] = row
    return list(found.values())


def _printed(row: dict[str, Any]) -> float:
    return float(row["paper_token_rate"] or row["paper_speedup"] or 0)


def _line(row: dict[str, Any]) -> str:
    def rates(start: str) -> str:
        both = (row[f"{start}_{how}_tokens_s"] for how in ("eager", "replayed"))
        return " / ".join(f"{each:.0f}" if each != "" else "-" for each in both)

    parts = ("bound_ms", "eager_ms", "replayed_ms")
    speed = row["paper_token_rate"] or (f"{row['paper_speedup']}×" if row["paper_speedup"] else "")
    cells = [
        *(row[name] or "-" for name in ("target", "draft", "decoder", "spec")),
        *(f"{row[name]:.0f}" for name in ("launches", "launches_replayed")),
        f"{row['read_gb']:.2f}",
        *(" / ".join(f"{row[f'{gpu}_{part}']:.1f}" for part in parts) for gpu in SHOWN),
        *(rates(gpu) for gpu in SHOWN),
        f"{row['paper_gpu']} {rates('paper_gpu')}" if row["paper_gpu"] else "-",
        speed,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Writes the table and its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    rows = table()
    written = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    files.write_csv(out / "plan-gpu.csv", written, list(rows[0]))
    files.write_text(out / "plan-gpu.md", page(rows))
    print(page(rows))


if __name__ == "__main__":
    main()
