"""Rows of a running server beside ours on the same prompts, and the table of ``servers``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import spec_bench
from spec_bench.records import cell_folder
from spec_bench.records.types import Generation
from spec_bench.server.calls import Counters, parse_prometheus_counters
from spec_bench.server.endpoint import ServerClient
from spec_bench.system import files

OURS = {  # what the same thing is called here
    "ar": "ar",
    "ngram": "{decoder: prompt_lookup, spec: 1x5, drafter: {shortest: 2, longest: 4}}",
    "draft_model": "sd:5",
}
TITLES = (
    *("decoder", "task", "requests together", "prompts", "target calls from"),
    *("block efficiency", "ours, same decoder", "ours without first calls"),
    "greedy answers equal to ours",
    *("delivered / calls: counts", "chunks", "counters"),
    *("TTFT p50", "s per token p50", "latency p99", "token rate", "speed-up in turn"),
)


@dataclass(frozen=True)
class Plan:
    """What is asked of every server."""

    model: str  # the target's name there
    tasks: Sequence[str]  # of the embedded samples
    prompts: int  # of each
    batches: Sequence[int]  # requests under way together
    results: Path  # where rows go

    def overrides(self, task: str, name: str) -> list[str]:
        """Those that ours and a server's rows share."""
        told = {"task": task, "prompts": self.prompts, "results": self.results, "name": name}
        return [f"{key}={value}" for key, value in told.items()] + ["generation=greedy"]


def our_rows(plan: Plan) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Ours by task and the server's name for the decoder."""
    found = {}
    for task in plan.tasks:
        cells = f"cells=[{','.join(OURS.values())}]"
        overrides = plan.overrides(task, "ours")
        rows = spec_bench.run(*overrides, cells, "engine.threads=1", columns="all")
        for name, row in zip(OURS, rows.to_dict("records"), strict=True):
            found[task, name] = row
    return found


def served_rows(
    plan: Plan, name: str, url: str, plain: str, ours: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[list[str]]:
    """A server's lines of the table.

    Args:
        plan: what is asked.
        name: of the server's decoder.
        url: where it is.
        plain: where the plain server is.
        ours: our rows.
    """
    lines = []
    server = ServerClient(url, plan.model)
    for task in plan.tasks:
        for batch in plan.batches:
            told = [f"server.url={url}", f"server.model={plan.model}", f"server.decoder={name}"]
            if name != "ar":
                told.append(f"server.baseline_url={plain}")
            before = parse_prometheus_counters(server.fetch_text("metrics") or "")
            rows = spec_bench.run(
                *plan.overrides(task, "served"),
                *("engine=server", f"engine.batch_size={batch}", "warmup=0", *told),
                columns="all",
            ).to_dict("records")
            after = parse_prometheus_counters(server.fetch_text("metrics") or "")
            row = next(row for row in rows if row["decoder"] == name)
            own = ours[task, name]
            lines.append(_line(plan, row, own, _by_counters(before, after, batch)))
    server.close()
    return lines


def _by_counters(before: Counters, after: Counters, batch: int) -> tuple[int, int] | None:
    """Tokens generated and calls after the prompts' of a whole run; None with several at a time."""
    names = ("generation_tokens_total", "inter_token_latency_seconds_count")
    keys = [(name, -1) for name in names]
    if batch > 1 or not all(key in after for key in keys):
        return None
    tokens, calls = (round(after[key] - before.get(key, 0.0)) for key in keys)
    return tokens, calls


def _line(
    plan: Plan, row: Mapping[str, Any], own: Mapping[str, Any], counters: tuple[int, int] | None
) -> list[str]:
    if row["status"] == "failed":
        return [row["decoder"], row["task"], str(row["batch_size"]), f"failed: {row['reason']}"]
    mine, theirs = (records(plan.results, str(each["run_id"])) for each in (own, row))
    same = sum(each.tokens == mine[name].tokens for name, each in theirs.items())
    calls = sum(len(each.steps) for each in theirs.values())
    decoded = sum(each.tokens_in_decode_s for each in theirs.values())
    counted = row["block_efficiency_source"] != "stream"
    told = "" if counters is None else f"{(counters[0] - len(theirs)) / counters[1]:.3f}"
    return [
        *(row["decoder"], row["task"], str(row["batch_size"]), str(row["prompts"])),
        *(row["block_efficiency_source"], with_ends(row, "block_efficiency")),
        *(with_ends(own, "block_efficiency"), f"{_later(mine):.2f}", f"{same} of {len(theirs)}"),
        *(f"{decoded / calls:.3f}" if counted else "", f"{row['block_efficiency_stream']:.3f}"),
        told,
        *(f"{row[name]:.3f}" for name in ("ttft_s_p50", "inter_token_s_p50", "latency_s_p99")),
        f"{row['token_rate']:.1f}",
        f"{row['speedup']:.2f}" if row["speedup"] else "",
    ]


def _later(answers: Mapping[str, Generation]) -> float:
    """Block efficiency without the first call of each answer, which a server's prompt pass is."""
    steps = [step for each in answers.values() for step in each.steps[1:]]
    return sum(step.accepted + 1 for step in steps) / len(steps)


def records(results: Path, run_id: str) -> dict[str, Generation]:
    """A cell's answers by prompt."""
    path = files.get_run_folder(results, run_id) / files.GENERATIONS
    return {each.prompt_id: each for each in cell_folder.read_generations_skipping_damaged(path)}


def with_ends(row: Mapping[str, Any], name: str) -> str:
    """A number with its interval, if it has one."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = "" if low is None or low != low else f" ({low:.2f} to {high:.2f})"
    return f"{row[name]:.2f}{ends}"


def markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [
        titles,
        ["---"] * len(titles),
        *([*line, *[""] * (len(titles) - len(line))] for line in lines),
    ]
    return "\n".join(f"| {' | '.join(each.replace('|', '/') for each in row)} |" for row in rows)
