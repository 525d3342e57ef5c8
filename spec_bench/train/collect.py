"""``python -m spec_bench.train.collect FOLDER ...``: one row for each head trained below folders.

Reads the ``training.json`` files and writes ReDrafter's grid (arXiv 2403.09919, Figure 4) as a CSV.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from spec_bench.settings.arguments import Parser, output_file
from spec_bench.system import signals
from spec_bench.system.files import write_csv


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows of all finished trainings below a folder, by name.

    Raises:
        ValueError: there is none.
    """
    files = sorted(folder.glob("**/training.json"))
    if not files:
        raise ValueError(
            f"{folder}: no training.json below it; nothing was trained to its end here"
        )
    return [_row(json.loads(file.read_text(encoding="utf-8")), file.parent) for file in files]


def _row(facts: dict[str, Any], folder: Path) -> dict[str, Any]:
    head = facts["settings"]["head"]
    row: dict[str, Any] = {
        "head": facts["head"],
        "recurrent": str(head["kind"] == "redrafter" and head["recurrent"]).lower(),
        "blocks": head["blocks"],
        "learning_rate": facts["settings"]["optimiser"]["learning_rate"],
        "parameters": facts["parameters"],
    }
    for side in ("train", "validation"):
        for guess, share in (facts["accuracy"][side] or {}).items():
            row[f"{side} {guess}"] = share
    for size in ("dialogues", "positions"):
        row[f"validation {size}"] = facts["data"]["validation"][size]
    return row | {"steps": facts["steps"], "seconds": facts["seconds"], "folder": folder.as_posix()}


def write_rows(rows: list[dict[str, Any]], file: Path) -> None:
    """A CSV with the columns of all rows, in order of their first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(file, rows, columns)


def main() -> int:
    """The command line."""
    parser = Parser(prog="python -m spec_bench.train.collect", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="e.g. results/train/grid")
    parser.add_argument("--out", type=output_file, help="default: heads.csv in the first folder")
    options = parser.parse_args()
    try:
        rows = [row for folder in options.folders for row in rows_of(folder)]
    except ValueError as error:
        sys.exit(str(error))
    file = options.out or options.folders[0] / "heads.csv"
    write_rows(rows, file)
    print(f"{file}: {len(rows)} heads")
    return 0


if __name__ == "__main__":
    signals.run(lambda: main, "interrupted; what was written is whole")
