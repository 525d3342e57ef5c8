"""Judges the answers behind a results file and fills ``judge_score`` in.

* ``python -m spec_bench.judge results/NAME/results.csv --model gpt-4``, with the endpoint's address
  in ``OPENAI_BASE_URL`` and its key, if it needs one, in ``OPENAI_API_KEY``

Exit status: 0 every cell with answers has a score, 1 some have none (the rows say why), 2 the
request cannot be right.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from spec_bench.judge.cells import judge_folders
from spec_bench.judge.conversation import ANSWERS
from spec_bench.judge.settings import JudgeSettings, judge_settings
from spec_bench.records import parquet
from spec_bench.settings.arguments import Parser
from spec_bench.sinks.csv import read_rows, write_csv
from spec_bench.system import files


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 2 and one line where the request cannot be right."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        settings = judge_settings(
            {
                "model": options.model,
                "timeout_s": options.timeout_s,
                "attempts": options.attempts,
                "parallel": options.parallel,
            }
        )
        return judge_file(options.file, settings)
    except ValueError as error:
        print(f"spec_bench.judge: {error}", file=sys.stderr)
        return 2


def judge_file(path: Path, settings: JudgeSettings) -> int:
    """Judges the cells of a results file that have answers, and rewrites it; 0 where all have a
    score, else 1.

    Raises:
        ValueError: no such file, or none of its cells has answers.
    """
    if not path.is_file():
        raise ValueError(f"no results file {str(path)!r}")
    results = files.results_of(path)
    run_ids = [row["run_id"] for row in read_rows(path) if row["status"] != "failed"]
    cells = [files.run_folder(results, run_id) for run_id in run_ids]
    folders = [folder for folder in cells if (folder / ANSWERS).is_file()]
    if not folders:
        raise ValueError(f"no cell of {str(path)!r} has {ANSWERS} below {str(results)!r}")
    if os.path.lexists(files.records_file(path)):
        parquet.check(files.records_file(path))
    judged = dict(
        zip(
            (folder.name for folder in folders),
            judge_folders(folders, settings, files.judgements_folder(results)),
            strict=True,
        )
    )
    # Read again: a job may have added rows meanwhile.
    rows = read_rows(path)
    for row in rows:
        if row["run_id"] in judged:
            judged[row["run_id"]].apply(row)
    write_csv(path, [dict(row) for row in rows])
    _renew_records(path, folders)
    for run_id, each in judged.items():
        print(f"{run_id}: {each.reason or each.columns['judge_score']}")
    return int(any(each.reason for each in judged.values()))


def _renew_records(table: Path, folders: Sequence[Path]) -> None:
    """Puts the judged cells' records into those beside the table, if it has any."""
    path = files.records_file(table)
    if path.is_file():
        before = parquet.read(path)
        kept = [folder for folder in folders if (folder / files.RECORDS).is_file()]
        renewed = {folder.name: parquet.read(folder / files.RECORDS) for folder in kept}
        parts = (renewed.get(run_id, before).cell(run_id) for run_id in before.run_ids)
        parquet.write(path, parquet.joined(parts))


def _parser() -> argparse.ArgumentParser:
    defaults = JudgeSettings()
    parser = Parser(
        prog="python -m spec_bench.judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="a results.csv")
    parser.add_argument("--model", required=True, help="the judge's name at the endpoint")
    parser.add_argument("--timeout-s", type=float, default=defaults.timeout_s)
    parser.add_argument("--attempts", type=int, default=defaults.attempts)
    parser.add_argument("--parallel", type=int, default=defaults.parallel)
    return parser
