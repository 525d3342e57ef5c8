"""Converts a paper's printed numbers to rows, on which its claims are checked first.

A claim that does not hold on them is not the paper's claim, or it is an erratum
(``experiments/errata.md``).
"""

import ast

import pandas as pd

from spec_bench.report.data.rows import defragment_rows, mask_tree_attention
from spec_bench.report.papers.pairs import find_pair_config
from spec_bench.report.papers.paper import Paper
from spec_bench.settings.registry import scan_registrations
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.decoders import get_decoder_parts
from spec_bench.vocabulary.published import FILE, pivot_numbers

UNPRINTED = "not printed"
"""The tree of a cell for which the paper prints none."""


def read_printed_rows(paper: Paper) -> pd.DataFrame:
    """Converts a paper's printed numbers to rows like measured rows, with the pairs and the results
    folders of its recipes. Each table counts as a harness of its own, because the numbers of two
    tables come from different runs.

    A speed-up replaces a token rate that is not printed. Raises UsageError if there are no numbers.
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
    # Plain decoding has no draft; it gets the first draft of its table and target.
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
    return defragment_rows(row_table)


def _find_lossless_mark(decoder: str) -> str:
    """Returns the mark of a decoder's rule: how its distribution relates to the target's."""
    mark = (
        scan_registrations("spec_bench.verify", "rule")
        .get(get_decoder_parts(decoder).rule, {})
        .get("mark")
    )
    return str(ast.literal_eval(mark)) if mark else "exact"
