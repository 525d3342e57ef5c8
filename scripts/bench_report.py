"""Times the report on synthetic rows made from RSD's published numbers, one row a printed cell.

``python scripts/bench_report.py`` prints the seconds of each step: all 54 tables, the list, the
pages of 1,998 rows and one page of 2,000 rows. ``--keep DIR`` leaves the results there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pandas as pd

from spec_bench.report.cli.command_line import main as report
from spec_bench.report.papers.pairs import pair_configs, pair_of
from spec_bench.report.papers.paper import load_paper, recipe_name
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import markdown
from spec_bench.system.files import results_file
from spec_bench.vocabulary.published import side_by_side

HALF_WIDTH = 0.03  # of a value: what an interval over some 100 prompts has


def synthetic(paper_rows: list[dict[str, str]]) -> dict[str, pd.DataFrame]:
    """Results files by experiment: the printed numbers, a little off, with intervals."""
    baselines = {row["table"]: row for row in paper_rows if row["decoder"] == "ar"}
    made: dict[str, list[dict[str, object]]] = {}
    for place, row in enumerate(paper_rows):
        experiment = recipe_name("rsd=exp1" if int(row["table"]) < 28 else "rsd=exp2")
        pair = pair_of(row["target"], row["draft"])
        config = pair_configs()[str(pair)]
        cell: dict[str, object] = {
            "pair": pair,
            "target": config.target,
            "draft": "" if row["decoder"] == "ar" else ",".join(config.drafts),
            "task": row["task"],
            "decoder": row["decoder"],
            "spec": row["spec"],
            "temperature": float(row["temperature"]),
            "top_k": 0,
            "top_p": float(row["top_p"] or 1.0),
            "seed": 0,
            "batch_size": 1,
            "tree_attention": True,
            "lossless": "exact",
            "status": "complete",
            "reason": "",
            "run_id": f"{place:012x}",
            "baseline": "same job",
            "prompts": 100,
        }
        for column in ("block_efficiency", "mbsu", "token_rate", "rouge2", "bleu"):
            if row.get(column):
                value = float(row[column]) * (1 + 0.02 * ((place * 37 % 11) / 5 - 1))
                cell[column] = value
                cell[f"{column}_low"] = value * (1 - HALF_WIDTH)
                cell[f"{column}_high"] = value * (1 + HALF_WIDTH)
        if row["token_rate"]:
            speedup = float(row["token_rate"]) / float(baselines[row["table"]]["token_rate"])
            cell |= {
                "speedup": speedup,
                "speedup_low": speedup * 0.97,
                "speedup_high": speedup * 1.03,
            }
        made.setdefault(experiment, []).append(cell)
    return {experiment: pd.DataFrame(rows) for experiment, rows in made.items()}


def write(folder: Path) -> int:
    """Writes the synthetic results; the number of rows."""
    files = synthetic(side_by_side(load_paper("rsd").numbers))
    for experiment, rows in files.items():
        path = results_file(folder, experiment)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.to_csv(path, index=False)
    return sum(len(rows) for rows in files.values())


def write_large(folder: Path) -> None:
    """One experiment of 2,000 rows: RSD's second one with two seeds."""
    own = pd.read_csv(results_file(folder, "rsd-exp2"), dtype=str, keep_default_na=False)
    again = own.assign(seed="1", run_id="b" + own.run_id.str[1:])
    path = results_file(folder / "large", "rsd-exp2")
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.concat([own, again]).head(2000).to_csv(path, index=False)


def timed(name: str, step: Callable[[], object]) -> float:
    """Runs a step and prints its seconds."""
    started = time.perf_counter()
    with redirect_stdout(StringIO()):
        step()
    seconds = time.perf_counter() - started
    print(f"{name:<44}{seconds:7.2f} s")
    return seconds


def all_tables(folder: Path) -> None:
    """Every RSD table as Markdown."""
    measured = Measured.below(folder)
    for item in load_paper("rsd").tables:
        markdown(build_table(item, measured))


def main() -> None:
    """Makes the rows, runs the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder for the synthetic results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        print(f"{write(folder)} rows")
        results = ["--results", str(folder)]
        total = timed("54 tables as Markdown, rows read once", lambda: all_tables(folder))
        total += timed("one table, rows read again", lambda: report(["table", "rsd/7", *results]))
        total += timed("list rsd", lambda: report(["list", "rsd", *results]))
        for experiment in ("rsd-exp1", "rsd-exp2"):
            total += timed(
                f"page {experiment}, its figures and checks",
                lambda experiment=experiment: report(["page", experiment, *results]),
            )
        print(f"{'together':<44}{total:7.2f} s")
        write_large(folder)
        large = ["page", "rsd-exp2", "--results", str(folder / "large")]
        timed("one page of 2000 rows", lambda: report(large))


if __name__ == "__main__":
    main()
