"""The papers' printed numbers, as text: a number is shown exactly as it was printed."""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.published import Row, side_by_side
from spec_bench.report.papers.index import Paper
from spec_bench.spec import parse


@dataclass(frozen=True)
class Gap:
    """A number that the paper prints and the copy read has lost.

    Attributes:
        reason: ``row_lost`` or ``order_unknown``.
        candidates: the numbers it may be, where they are known.
        twin_table: the table that prints the same spec's number; "" where none does.
        twin_value: that number.
    """

    reason: str
    candidates: tuple[str, ...]
    twin_table: str
    twin_value: str


def reference_rows(paper: Paper, number: int) -> list[Row]:
    """A table's rows in printed order."""
    numbers = paper.numbers_of(number)
    if paper.name == "rsd":
        rows = side_by_side(numbers)
        return [{**row, "accuracy": row.get("rouge2", row.get("bleu", ""))} for row in rows]
    return [_named_as_before(paper.name, row) for row in numbers]


_BEFORE = {
    "mcsd_wor": "mcss_without_replacement",
    "mcsd": "mcss_with_replacement",
    "ar": "multinomial",
    "sd": "specdecode",
    "dsbd_one_cache": "dsbd",
    "exact_match": "em",
    "execution_accuracy": "ea",
    "perplexity": "ppl",
    "token_rate": "tokens_per_second",
    "energy_j_per_token": "joules_per_token",
    "block_efficiency": "tokens_per_step",
    "judge_score": "quality",
}


def _named_as_before(paper: str, row: Row) -> Row:
    """A number under the names that the layouts know."""
    decoder, metric = row["decoder"], row["metric"]
    if paper == "mcsd":
        method = row["method"] or decoder
        if row["table"] in "2356":
            method = {"mcsd_wor": "mcsd"}.get(method, method)
        else:
            method = _BEFORE.get(method, method)
        tree = parse(row["spec"]).numbers if row["spec"] else ()
        tree = (1,) * tree[0] if decoder == "sd" else tree
        if row["table"] in "17":
            end = "delta" if metric.endswith("gain") else f"k{row['spec']}"
            metric = f"acceptance_rate_{end}"
        return {**row, "method": method, "metric": metric, "k_config": "x".join(map(str, tree))}
    if paper == "dsbd":
        return {**row, "method": _BEFORE.get(decoder, decoder), "metric": _BEFORE[metric]}
    typical = decoder.endswith("_typical")
    exact = "greedy" if row["table"] == "1" or decoder == "ar" else "rejection"
    return {
        **row,
        "method": decoder.removesuffix("_typical"),
        "acceptance": "typical" if typical else exact,
        "metric": _BEFORE.get(metric, metric),
    }


def gaps_of(paper: Paper, number: int) -> dict[tuple[str, str, str], Gap]:
    """(decoder, spec, column) -> why a table's cell is empty although the paper prints a number."""
    return {
        (
            row["decoder"],
            row["spec"],
            "accuracy" if row["metric"] in ("rouge2", "bleu") else row["metric"],
        ): Gap(
            row["reason"],
            tuple(filter(None, row["candidates"].split("|"))),
            row["twin_table"],
            row["twin_value"],
        )
        for row in paper.numbers_of(number)
        if row["reason"]
    }
