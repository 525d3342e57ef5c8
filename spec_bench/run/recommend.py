"""``python -m spec_bench recommend``: which decoder for this pair, task and machine.

Plain decoding is run once and its text looked through by target and draft; from that the block
efficiency of every decoder that can be forecast follows without running it. What an iteration costs
on this machine is timed, decoders in turn, and decoders that cannot be forecast are timed and
counted by running them on the same few prompts. The best few are then measured, in turn with plain
decoding, on prompts that nothing has seen.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from spec_bench.decode.config import AnyDecoder, DecoderConfig, read_decoder
from spec_bench.engine.pool import CachePool
from spec_bench.engine.stopwatch import synchronise
from spec_bench.forecast.decoders import Text, calls_for, why_not
from spec_bench.forecast.laws import laws_of
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import ratio_interval
from spec_bench.records import CellResult, Generation, Request
from spec_bench.run.cells import BASELINE, Cell
from spec_bench.run.identity import run_id
from spec_bench.run.models import models_of, tokenizer_of
from spec_bench.run.prompts import Prompts
from spec_bench.run.settings import JobSettings
from spec_bench.run.store import CellStore

log = logging.getLogger(__name__)
_OF_THE_SEARCH = ("prompts=", "confirm", "cells=", "budget=", "length=", "name=")
ROUNDS, ITERATIONS = 3, 8  # iterations timed of each decoder, in turn


@dataclass(frozen=True)
class Candidate:
    """A decoder that might be recommended.

    Attributes:
        cell: the decoder with its tree.
        block_efficiency: expected tokens per target call, or counted where ``forecast`` is false.
        forecast: whether it was forecast from plain decoding's text.
        speedup: over plain decoding, from the block efficiency and timed iterations.
    """

    cell: Cell
    block_efficiency: Interval
    forecast: bool
    speedup: float


@dataclass(frozen=True)
class Recommendation:
    """The answer, and what it stands on.

    Attributes:
        candidates: all, the best forecast first.
        measured: rows of those that were measured on fresh prompts, plain decoding among them.
        best: of them; plain decoding where nothing is surely faster.
    """

    candidates: tuple[Candidate, ...]
    measured: tuple[CellResult, ...]
    best: CellResult


class Screening:
    """A pair on the first few prompts: texts, forecasts and times of iterations.

    Args:
        settings: the job's; its cells are the candidates, plain decoding first.
        answers: plain decoding's, by prompt.
    """

    def __init__(self, settings: JobSettings, answers: dict[str, Generation]) -> None:
        self._settings, self._answers = settings, answers
        tokenizer, tokens = tokenizer_of(settings.pair)
        self._requests = Prompts.build(settings, tokenizer).requests
        self._models = models_of(settings.pair, tokens)
        self._both = self._models[0], self._models[1]
        self._pool = CachePool()
        self._generator = torch.Generator().manual_seed(settings.seed)

    def candidates(self) -> list[Candidate]:
        """All cells, the likely fastest first."""
        cells = self._settings.cells[1:]
        configs = [read_decoder(cell.decoder, self._settings.sampling) for cell in cells]
        texts = self._texts()
        efficiency = [self._forecast(config, texts) for config in configs]
        seconds = self._seconds_of([self._settings.cells[0], *cells])
        found = []
        for cell, known, each in zip(cells, efficiency, seconds[1:], strict=True):
            counted = known or self._counted(cell)
            speedup = counted.value * seconds[0] / each
            found.append(Candidate(cell, counted, known is not None, speedup))
        return sorted(found, key=lambda each: -each.speedup)

    def _texts(self) -> list[Text]:
        """Plain decoding's answers with both models' laws at every token of them."""
        settings, found = self._settings.sampling, []
        for request in self._requests:
            said = self._answers[request.prompt_id].tokens
            laws = laws_of(*self._both, request.prompt_ids, said, settings)
            found.append(Text(torch.tensor(said), *laws))
        return found

    def _forecast(self, config: DecoderConfig, texts: Sequence[Text]) -> Interval | None:
        if why_not(config):
            return None
        sampling = self._settings.sampling
        calls = [calls_for(config, text, sampling, self._generator) for text in texts]
        return ratio_interval([len(text.tokens) for text in texts], calls)

    def _decoder(self, cell: Cell) -> AnyDecoder:
        target, drafts = self._models[0], self._models[1 : cell.drafts + 1]
        config = read_decoder(cell.decoder, self._settings.sampling)
        return config.build(target, drafts, self._settings.sampling, 1, self._pool)

    def _counted(self, cell: Cell) -> Interval:
        """Block efficiency by running the decoder, delivered tokens over target calls."""
        answers = self._decoder(cell).generate(self._requests, self._settings.seed)
        found = ratio_interval([len(a.tokens) for a in answers], [len(a.steps) for a in answers])
        assert found is not None
        return found

    def _seconds_of(self, cells: Sequence[Cell]) -> list[float]:
        """Median seconds of an iteration, decoders in turn, beside each other in every round."""
        decoders: list[Any] = [self._decoder(cell) for cell in cells]
        times: list[list[float]] = [[] for _ in cells]
        for round_ in range(ROUNDS):
            request = self._requests[round_ % len(self._requests)]
            for decoder, mine in zip(decoders, times, strict=True):
                mine += _timed(decoder, request, self._settings.seed)
        return [statistics.median(mine) for mine in times]


@torch.inference_mode()
def _timed(decoder: Any, request: Request, seed: int) -> list[float]:
    """Seconds of single iterations; the first one, which may warm up, is left out."""
    long = replace(request, max_new_tokens=max(request.max_new_tokens, 64), stop_ids=())
    rows, found = decoder.begin([long], seed), []
    for _ in range(ITERATIONS):
        if rows[0].finish is not None:
            break
        synchronise(decoder.target.device)
        start = time.perf_counter()
        decoder.step(rows)
        synchronise(decoder.target.device)
        found.append(time.perf_counter() - start)
    return found[1:] or found


def recommend(settings: JobSettings) -> Recommendation:
    """Looks for the fastest decoder.

    Args:
        settings: a job in two stages; its cells are the candidates.

    Raises:
        ValueError: the job is not one in two stages, or plain decoding failed.
    """
    from spec_bench.run.app import run_stage

    confirm = settings.confirm
    if confirm is None:
        raise ValueError("recommend wants fresh prompts: set confirm={prompts: NUMBER}")
    settings = settings.pinned()
    baseline = settings.cells[0]
    (plain,) = run_stage(replace(settings, cells=(baseline,)), ())
    if plain.status != "complete":
        raise ValueError(f"plain decoding failed: {plain.reason}")
    store = CellStore(settings.results, run_id(settings.cell_settings(baseline)))
    candidates = Screening(settings, dict(store.load())).candidates()
    known = [each for each in candidates if each.forecast][: confirm.best]
    tried = [each for each in candidates if not each.forecast][:2]
    second = replace(
        settings,
        cells=(baseline, *(each.cell for each in (*known, *tried))),
        examples=settings.fresh,
        fresh=(),
        confirm=None,
        stage="confirm",
    )
    measured = run_stage(second, ())
    return Recommendation(tuple(candidates), tuple(measured), best_of(measured))


def best_of(measured: Sequence[CellResult]) -> CellResult:
    """The fastest row; plain decoding where no row is surely faster than it.

    Args:
        measured: complete and other rows, plain decoding among them.
    """
    (plain,) = (row for row in measured if row.facts.decoder == BASELINE)
    faster = [
        row
        for row in measured
        if row.status == "complete" and float(row.metrics.get("speedup_low") or 0) > 1
    ]
    return max(faster, key=lambda row: float(row.metrics["speedup"] or 0), default=plain)


def main(overrides: Sequence[str]) -> int:
    """The command; prints all candidates and the answer in three lines.

    Args:
        overrides: as those of a job.

    Returns:
        The exit status: 2 for settings that cannot be right.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from spec_bench.configs import conf_dirs
    from spec_bench.run.app import settings_of
    from spec_bench.run.compose import one_line, recipe_arguments, register

    register()
    told = ["experiment=recommend", "sink=quiet", *recipe_arguments(list(overrides))]
    try:
        with initialize_config_dir(str(conf_dirs()[0]), version_base="1.3"):
            config = compose("config", overrides=told)
        answer = recommend(settings_of(config))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        print(f"spec_bench: {one_line(error)}", file=sys.stderr)
        return 2
    print(told_in_lines(answer, overrides))
    return 0


def told_in_lines(answer: Recommendation, overrides: Sequence[str]) -> str:
    """Candidates with forecast and measurement, then the answer: decoder, speed-up, command."""
    rows = {(row.facts.decoder, row.facts.spec): row for row in answer.measured}
    lines = [f"{'decoder':<18}{'tokens a call':>24}{'speed-up':>10}  measured on fresh prompts"]
    for each in answer.candidates:
        cell, known = each.cell, each.block_efficiency
        efficiency = f"{known.value:.2f}{_ends(known.low, known.high)}"
        efficiency += " forecast" if each.forecast else " counted"
        row = rows.get((cell.name, cell.spec))
        measured = (
            "" if row is None else f"{_shown(row, 'block_efficiency')}; {_shown(row, 'speedup')}"
        )
        lines.append(f"{cell.title:<18}{efficiency:>24}{each.speedup:>10.2f}  {measured}")
    best = answer.best.facts
    if best.decoder == BASELINE:
        return "\n".join([*lines, "", "plain decoding: nothing tried is surely faster"])
    kept = [each for each in overrides if not each.lstrip("+").startswith(_OF_THE_SEARCH)]
    fresh, others = answer.best.metrics["prompts"], len(answer.measured) - 1
    return "\n".join(
        [
            *lines,
            "",
            f"{best.decoder} {best.spec}",
            f"speed-up {_shown(answer.best, 'speedup')} over plain decoding, on {fresh} fresh "
            f"prompts, the best of {others} measured and of {len(answer.candidates)} forecast",
            " ".join(["python -m spec_bench", *kept, f"decoder={best.decoder} spec={best.spec}"]),
        ]
    )


def _shown(row: CellResult, name: str) -> str:
    """A number of a row with its interval."""
    value = row.metrics.get(name)
    if not isinstance(value, float | int):
        return "-"
    return f"{value:.2f}{_ends(row.metrics.get(f'{name}_low'), row.metrics.get(f'{name}_high'))}"


def _ends(low: object, high: object) -> str:
    known = isinstance(low, float) and isinstance(high, float)
    return f" [{low:.2f}, {high:.2f}]" if known else ""
