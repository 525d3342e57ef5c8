"""A search in two stages: many trees on few prompts, then the best few on fresh prompts.

The best of hundreds of trees on a few prompts is partly luck, and its interval does not account for
being that of a maximum. So a first job screens all cells, and a second one decodes the best of them
on prompts that the first did not see; its rows say ``confirm`` in the column ``stage``. The cells
of both are ordinary cells with other run ids, and both jobs resume as any job does.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.records.types import CellResult
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)


def best_of(results: Sequence[CellResult], confirm: ConfirmSettings) -> list[str]:
    """Returns the run ids of the best cells of each decoder, in the order screened: by the number
    itself and not by an end of its interval, as on few prompts a wide one would win by its width.
    """
    sign = -1 if columns.column(confirm.by).better == "down" else 1
    known: dict[str, list[tuple[float, str]]] = {}
    for result in results:
        value = result.metrics.get(confirm.by)
        if isinstance(value, float | int) and result.facts.decoder != BASELINE:
            known.setdefault(result.facts.decoder, []).append((-sign * value, result.run_id))
    ranked = [sorted(cells, key=lambda cell: cell[0])[: confirm.best] for cells in known.values()]
    chosen = {name for cells in ranked for _, name in cells}
    return [result.run_id for result in results if result.run_id in chosen]


def confirming(settings: JobSettings, results: Sequence[CellResult]) -> JobSettings | None:
    """Returns the second job of a search, with a baseline timed anew; None if there is none."""
    confirm = settings.asked.confirm
    if confirm is None or settings.stage != "screen":
        return None
    chosen = set(best_of(results, confirm))
    if not chosen:
        log.warning("nothing to confirm: no cell has a %s", confirm.by)
        return None
    cells = [c for c in settings.cells if settings.run_id(c) in chosen]
    both = (settings.cells[0], *cells)
    return replace(settings, cells=both, examples=settings.fresh, fresh=(), stage="confirm")
