"""``python -m spec_bench.train.collect FOLDER ...``: a table of the heads trained below folders.

Reads the ``training.json`` files and writes ReDrafter's grid (arXiv 2403.09919, Figure 4) as a CSV.
"""

import json
import sys
from pathlib import Path
from typing import Any

from spec_bench.settings.arguments import OneLineErrorParser, parse_output_file
from spec_bench.system import signals
from spec_bench.system.files import write_csv


def read_training_row(file: Path) -> dict[str, Any]:
    """Makes the row of a finished training from its ``training.json``."""
    facts = json.loads(file.read_text(encoding="utf-8"))
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
    totals = {"steps": facts["steps"], "seconds": facts["seconds"]}
    return row | totals | {"folder": file.parent.as_posix()}


def write_training_table() -> None:
    """Writes the table of the folders on the command line."""
    parser = OneLineErrorParser(prog="python -m spec_bench.train.collect", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="e.g. results/train/grid")
    parser.add_argument(
        "--out", type=parse_output_file, help="default: heads.csv in the first folder"
    )
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    for folder in options.folders:
        if not (files := sorted(folder.glob("**/training.json"))):
            sys.exit(f"{folder}: no training.json below it; nothing was trained to its end here")
        rows += map(read_training_row, files)
    file = options.out or options.folders[0] / "heads.csv"
    write_csv(file, rows, list(dict.fromkeys(name for row in rows for name in row)))
    print(f"{file}: {len(rows)} heads")


if __name__ == "__main__":
    line = "interrupted; what was written is whole"
    with signals.exits_in_one_line(line), signals.signals_as_interrupts():
        write_training_table()
