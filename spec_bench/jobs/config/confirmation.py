"""A search in two stages: many trees on few prompts, then the best few on fresh prompts.

The best of hundreds of trees on a few prompts is partly luck, and its interval does not account for
the selection. So a first job screens all cells, and a second one decodes the best of them on
prompts that the first did not see; its rows say `confirm` in the column `stage`. The cells of both
are ordinary cells with other run ids, and both jobs resume as any job does.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.records.types import CellResult, explain_timing_doubt, format_reasons
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)


def select_best_ids_of_each_decoder(
    results: Sequence[CellResult], confirm: ConfirmSettings
) -> list[str]:
    """Selects the run ids of the best cells of each decoder, in the order of ``results``. Cells are
    ranked by the value and not by an end of its interval, because on few prompts wide intervals
    would win.
    """
    sorted_results = sorted(results, key=lambda result: compute_rank_key(result, confirm.by))
    ids_by_decoder = group_by_key(
        (result.facts.decoder, result.run_id)
        for result in sorted_results
        if result.facts.decoder != BASELINE and compute_rank_key(result, confirm.by) < inf
    )
    best_ids = {name for names in ids_by_decoder.values() for name in names[: confirm.best]}
    return [result.run_id for result in results if result.run_id in best_ids]


def compute_rank_key(result: CellResult, column: str) -> float:
    """Computes the key that sorts cells, the best first, from a column's value; infinity if there
    is none.
    """
    value = result.metrics.get(column)
    if not isinstance(value, float | int):
        return inf
    return value if columns.get_column(column).better == "down" else -value


def _warn_of_doubtful_ranks(results: Sequence[CellResult], column: str) -> None:
    """Warns if cells were ranked by speeds or energies of which some are stalled or disturbed."""
    doubtful_names = [
        f"{result.facts.decoder} {result.facts.spec}"
        for result in results
        if explain_timing_doubt(format_reasons(result.reasons))
    ]
    if doubtful_names and columns.get_column(column).kind in ("time", "energy"):
        log.warning(
            "%d of %d cells stalled or were disturbed, such as %s: by %s a better one may be "
            "missing among those to confirm",
            len(doubtful_names),
            len(results),
            doubtful_names[0],
            column,
        )


def build_confirmation_job(
    settings: JobSettings, results: Sequence[CellResult]
) -> JobSettings | None:
    """Builds the second job of a search, with a baseline timed again; None if there is no second
    job.
    """
    confirm = settings.request.confirm
    if confirm is None or settings.stage != "screen":
        return None
    best_ids = set(select_best_ids_of_each_decoder(results, confirm))
    if not best_ids:
        log.warning("nothing to confirm: no cell has a %s", confirm.by)
        return None
    _warn_of_doubtful_ranks(results, confirm.by)
    cells = [c for c in settings.cells if settings.compute_run_id(c) in best_ids]
    best_cells = (settings.cells[0], *cells)
    return replace(
        settings,
        cells=best_cells,
        examples=settings.confirmation_examples,
        confirmation_examples=(),
        stage="confirm",
    )
