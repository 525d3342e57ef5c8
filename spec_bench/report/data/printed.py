"""A paper's printed numbers as measured rows, of which its claims are asked first.

What does not hold there is no claim of the paper's, or an erratum (``experiments/errata.md``).
"""

import ast

import pandas as pd

from spec_bench.report.data.rows import consolidate_columns_by_type, mask_tree_attention
from spec_bench.report.papers.pairs import find_pair_config
from spec_bench.report.papers.paper import Paper
from spec_bench.settings.registry import scan_registrations
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.decoders import get_decoder_parts
from spec_bench.vocabulary.published import FILE, pivot_numbers

UNPRINTED = "not printed"
"""The tree of a cell whose tree the paper does not print."""


def read_printed_rows(paper: Paper) -> pd.DataFrame:
    """A paper's printed cells as measured rows: of the pairs and the results folder that a run of
    its recipes has, each table a harness of its own, since numbers of two tables are of two runs.

    A speed-up stands for the rate where that is not printed. Raises ValueError: no number is.
    """
    if not paper.numbers:
        raise UsageError(f"{paper.name} has no printed numbers: {paper.folder} has no {FILE}")
    rows = pd.DataFrame(pivot_numbers(paper.numbers))
    rows = rows.where(rows != "")
    tables = {str(entry.number): entry for entry in paper.tables}
    columns = [column for entry in paper.tables for column in entry.columns]
    scales = {name: column.scale for column in columns for name in column.metrics}
    for name in rows.columns.intersection(["temperature", "top_k", "top_p", *scales]):
        rows[name] = pd.to_numeric(rows[name], errors="coerce") / scales.get(name, 1.0)
    rows["target"] = rows.target.fillna(rows.table.map(lambda number: tables[number].target))
    # Plain decoding, which has no draft, stands beside its table's.
    table_drafts = rows.groupby(["table", "target"]).draft.transform("first")
    rows = rows.assign(draft=rows.draft.fillna(table_drafts)).fillna(
        {"draft": "", "spec": UNPRINTED}
    )
    speeds = rows.reindex(columns=["token_rate", "speedup"])
    row_table = rows.assign(
        pair=[
            find_pair_config(*names) or " with ".join(filter(None, names))
            for names in zip(rows.target, rows.draft, strict=True)
        ],
        experiment=[next(iter(tables[number].experiments), "") for number in rows.table],
        harness="Table " + rows.table,
        tree_attention=mask_tree_attention(rows),
        token_rate=speeds.token_rate.fillna(speeds.speedup),
        lossless=rows.decoder.map(_find_lossless_mark),
        status="complete",
        run_id="printed",
    )
    return consolidate_columns_by_type(row_table)


def _find_lossless_mark(decoder: str) -> str:
    """Returns how a decoder's distribution relates to the target's, by its rule."""
    mark = (
        scan_registrations("spec_bench.verify", "rule")
        .get(get_decoder_parts(decoder).rule, {})
        .get("mark")
    )
    return str(ast.literal_eval(mark)) if mark else "exact"
