"""A search in two stages: many trees on few prompts, then the best few on fresh prompts.

The best of hundreds of trees on a few prompts is partly luck, and its interval does not account for
being that of a maximum. So a first job screens all cells, and a second one decodes the best of them
on prompts that the first did not see; its rows say ``confirm`` in the column ``stage``. The cells
of both are ordinary cells with other run ids, and both jobs resume as any job does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.settings import JobSettings, run_id
from spec_bench.jobs.sweep.plan import PlannedCell, State
from spec_bench.records.types import CellResult
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)


def best_of(results: Sequence[CellResult], confirm: ConfirmSettings) -> list[str]:
    """The run ids of the best cells of each decoder, by the number itself, in the order screened.

    Not by an end of its interval: on few prompts a wide interval would win by its width.
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
    """The second job of a search, with a baseline timed anew; None if there is none."""
    confirm = settings.asked.confirm
    if confirm is None or settings.stage != "screen":
        return None
    chosen = set(best_of(results, confirm))
    if not chosen:
        log.warning("nothing to confirm: no cell has a %s", confirm.by)
        return None
    cells = [c for c in settings.cells if run_id(settings.cell_settings(c)) in chosen]
    return replace(
        settings,
        cells=(settings.cells[0], *cells),
        examples=settings.fresh,
        fresh=(),
        stage="confirm",
    )


def planned_confirmation(
    settings: JobSettings, screened: Sequence[PlannedCell]
) -> list[PlannedCell]:
    """The most that the second job takes, while its cells are still unknown."""
    confirm = settings.asked.confirm
    if confirm is None:
        return []
    windows = len(settings.fresh) * settings.asked.repeats
    planned = []
    for decoder in dict.fromkeys(cell.facts.decoder for cell in screened):
        of_decoder = (cell for cell in screened if cell.facts.decoder == decoder)
        again = [_again(cell, windows, settings.max_new_tokens) for cell in of_decoder]
        again.sort(key=lambda cell: cell.device_hours or 0.0, reverse=True)
        for place, cell in enumerate(again[: confirm.best], start=1):
            which = cell.facts.spec
            if decoder != BASELINE:
                which = f"best {place} of {len(again)} by {confirm.by}"
            facts = replace(cell.facts, spec=which, stage="confirm")
            planned.append(replace(cell, run_id=f"{cell.run_id} confirm", facts=facts))
    return planned


def _again(cell: PlannedCell, windows: int, max_new_tokens: int) -> PlannedCell:
    """A cell of the same rate on other prompts."""
    gpus = cell.memory.gpus
    hours = None
    if cell.rate is not None and gpus is not None:
        hours = windows * max_new_tokens / cell.rate.tokens_per_s / 3600 * max(1, gpus)
    state: State = "unknown" if cell.state == "unknown" else "missing"
    return replace(cell, state=state, prompts=windows, left=windows, device_hours=hours)
