"""A job's plan from what was asked for: its cells, then those of a search's second stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spec_bench.jobs.config.cells import DecoderLoader
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.engine_settings import placed
from spec_bench.jobs.config.pair import with_own_name
from spec_bench.jobs.config.settings import JobSettings, build_settings
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.confirm import confirming, planned_confirmation
from spec_bench.jobs.sweep.plan import PlannedCell, plan_job
from spec_bench.jobs.sweep.rates import known_rates
from spec_bench.tasks.source import UnreadDataError

_OPEN = ("missing", "partial", "unknown")
_unread: set[str] = set()  # sources that a job before could not read: the next need not try


def plan(asked: RunSettings, load: DecoderLoader, folders: Sequence[Path]) -> list[PlannedCell]:
    """What a job would do; loads and decodes nothing.

    Raises:
        ValueError: settings that cannot be right.
    """
    # The machine that plans a sweep need not have the device it will run on.
    engine = placed(asked.engine, asked.pair.target)
    here = replace(asked, engine=replace(engine, device="cpu"))
    settings = _settings(here, load, folders).pinned(fetch=False)
    settings = replace(settings, engine=engine)
    known = (with_own_name(asked.pair, folders), engine, known_rates(settings.results))
    planned = plan_job(settings, *known)
    if any(cell.state in _OPEN for cell in planned):
        return [*planned, *planned_confirmation(settings, planned)]
    results = [CellStore(settings.results, cell.run_id).result() for cell in planned]
    second = confirming(settings, [result for result in results if result is not None])
    return [*planned, *(plan_job(second, *known) if second else [])]


def _settings(asked: RunSettings, load: DecoderLoader, folders: Sequence[Path]) -> JobSettings:
    """The job's settings; if the hub's data cannot be read here, without them.

    Raises:
        ValueError: settings that cannot be right; also if nobody says how many prompts there are.
    """
    source = repr(asked.task.get("source"))
    try:
        if source not in _unread:
            return build_settings(asked, load, folders)
    except UnreadDataError as error:
        if asked.prompts is None:
            raise ValueError(f"{error}; prompts=N plans without the data") from error
        _unread.add(source)
    return build_settings(asked, load, folders, unread=True)
