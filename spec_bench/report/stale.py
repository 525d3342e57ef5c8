"""Files beside an experiment's rows that ``report all`` wrote once and writes no more."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from spec_bench.report.papers.paper import paper_names

FOLDERS = {"tables": (".md", ".csv", ".tex"), "figures": (".png", ".pdf")}
"""The folders of an experiment's tables and figures, and the endings of their files."""


def remove(folder: Path, written: Collection[Path]) -> list[str]:
    """Removes tables and figures of a paper that were not written just now; a line for each such
    file.

    They show rows that are no longer there, and the index would go on linking to them. A file
    that is not named like a paper's table or figure stays: somebody put it there.
    """
    messages = []
    for name, endings in FOLDERS.items():
        for path in sorted({*(folder / name).glob("*")} - {*written}):
            ours = path.suffix in endings and path.name.partition("-")[0] in paper_names()
            if ours and path.is_file():
                path.unlink()
            messages.append(
                f"{path}: {'removed, no longer made' if ours else 'not made by this command'}"
            )
    return messages
