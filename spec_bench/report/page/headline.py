"""Recommends a decoder for each pair and task, and summarises an experiment in one sentence.

The recommended decoder is the fastest of those that are surely faster than autoregressive decoding
(AR), or the simplest (fewest nodes to verify) of those that tie with it and are close to it. If
none is surely faster, the answer is AR, a tie with AR, or that nothing can be decided yet.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pandas as pd

from spec_bench.metrics.decoder_choice import CLOSE, DecoderChoice, DecoderSpeed, choose_decoder
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.p_values import bonferroni_ends
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.differences import (
    find_generate_speedup_over_ours,
    find_relative_chance_difference,
)
from spec_bench.report.data.rows import (
    BESIDE,
    Group,
    Row,
    find_filled_column,
    format_marked_decoder_and_tree,
    format_prompt_count,
    format_title_without_pair,
    format_tree_titles_with_drafts,
    get_empty_reason,
    get_interval,
    get_number,
    get_number_and_ends,
    get_timing_doubt,
    group_rows,
    list_cell_key_columns,
    read_results_file,
    select_undoubted_rows,
    to_rows,
)
from spec_bench.report.data.seeds import SEEDS, pool_seeds
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import get_column
from spec_bench.vocabulary.numbers import format_ends

_METRICS = ("speedup", "token_rate", "block_efficiency")
_SIZE = ["nodes_per_call", "draft_calls"]
LEAD = "lead"
"""Column of a search's rows: a number over the prompts of all stages; larger is better."""


@dataclass(frozen=True)
class Headline:
    """The recommended decoder of a group: the fastest, or the simplest that ties with it."""

    pair: str  # the group's pair
    task: str  # the group's task and settings, for people
    decoder: str  # name and tree, for people; the answer's words if none is recommended
    decoder_name: str  # the decoder's name in the results; "" if none is recommended
    value: str  # a number with its unit
    interval: str  # its 95% interval; "" if it has none
    certainty: str  # how sure the recommendation is
    basis: str  # number of prompts, and of cells for which the interval is corrected
    # number of speculative cells that tie with the fastest (which counts, too), and of all
    tied_and_all_counts: tuple[int, int] = (1, 1)
    spec: str = ""  # the tree in the results; "" if no speculative decoder is recommended

    @property
    def speed(self) -> str:
        """The value with its interval."""
        return f"{self.value} [{self.interval}]" if self.interval else self.value

    @property
    def why(self) -> str:
        """The reason for the answer."""
        return f"{self.certainty} ({self.basis})" if self.basis else self.certainty

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        use = f"{'use ' if self.decoder_name else ''}{self.decoder}"
        speed = f", {self.speed}" if self.decoder_name not in ("", "ar") else ""
        return f"{self.task}: {use}{speed}: {self.why}."


def make_headline(group: Group) -> Headline | None:
    """Recommends the best of the exact speculative decoders and AR; None without a usable number.

    A search's screening gets None: it only selects cells to confirm, and its best is partly luck.
    """
    if "stage" in group.rows and (group.rows.stage == "screen").all():
        return None
    rows = group.rows.assign(spec=format_tree_titles_with_drafts(group.rows))
    rows = rows[(rows.decoder != "ar") & (rows.status != "failed")]
    is_alone = len(rows) == 1
    exact = rows[rows.lossless == "exact"]
    rows = exact if not exact.empty else rows
    metric = find_filled_column(rows, _METRICS)
    if metric is None:
        return None
    rows = _keep_first_meter_per_cell(rows[rows[metric].notna()])
    choice = _choose_by_speed(group, rows, metric)
    tie_count = 1
    winner = rows.loc[rows[metric].idxmax()]
    if choice and not choice.faster_places:
        _, decoder, certainty = choice
        decoder_name, value, interval = ("ar", "1.00×", "") if decoder == "AR" else ("", "", "")
    else:
        undoubted_rows = select_undoubted_rows(rows, metric)
        candidates = rows.iloc[[*choice.faster_places]] if choice else undoubted_rows
        if candidates.empty:
            return None
        best = candidates.loc[candidates[metric].idxmax()]
        close_rows = _select_close_rows(undoubted_rows, best, metric)
        winner = _pick_simplest(close_rows[close_rows.index.isin(candidates.index)], metric)
        tie_count = len(close_rows)
        decoder = format_marked_decoder_and_tree(winner)
        decoder_name = str(winner.decoder)
        value, interval = _format_value(winner, metric, len(rows))
        certainty = "surely faster than AR, " if choice else ""
        if len(undoubted_rows) == 1 < len(rows):
            certainty += "the only one that is judged"
        else:
            certainty += _describe_certainty(rows, best, close_rows, winner, metric, is_alone)
        if len(undoubted_rows) < len(rows):
            certainty += ", those that stalled or were disturbed left out"
    certainty += _describe_separate_times(rows, metric, choice)
    if exact.empty:
        certainty += f", {_describe_lossless(winner)}"
    bases = (
        _describe_prompts_and_cells(rows, metric, choice),
        _describe_faster_generate(group, metric),
    )
    return Headline(
        pair=str(winner.pair),
        task=format_title_without_pair(group),
        decoder=decoder,
        decoder_name=decoder_name,
        value=value,
        interval=interval,
        certainty=certainty,
        basis=", ".join(filter(None, bases)),
        tied_and_all_counts=(tie_count, len(rows)),
        spec=str(group.rows.spec[winner.name]) if decoder_name not in ("", "ar") else "",
    )


def _describe_lossless(row: pd.Series) -> str:
    """Describes how a row's output is distributed, for people."""
    if pd.isna(row.lossless):
        return "lossless or not is not stated"
    return names.MARKS.get(str(row.lossless), str(row.lossless))


def _describe_separate_times(rows: pd.DataFrame, metric: str, choice: DecoderChoice | None) -> str:
    """Describes that cells were not measured side by side; "" if they were."""
    if choice and metric == "token_rate":
        return ", not measured side by side"
    if BESIDE in rows and rows[BESIDE].max() > 1.001 * rows[BESIDE].min():  # not by rounding
        return "; cells of different times, each beside AR of its own time"
    return ""


def _keep_first_meter_per_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """Keeps, of rows that differ only in the energy meter, those of the first meter."""
    if "energy_method" not in rows:
        return rows
    meter = rows.energy_method.fillna("")
    keys = [rows[key] for key in list_cell_key_columns(rows)]
    return rows[meter == meter.groupby(keys, dropna=False).transform("first")]


def _choose_by_speed(group: Group, rows: pd.DataFrame, metric: str) -> DecoderChoice | None:
    """Chooses by speed-up, or by token rate over AR's; None if there are no such numbers."""
    baseline_speed = get_interval(group.baseline, "token_rate") if group.baseline else None
    baseline_speed = Interval(1.0, 1.0, 1.0) if metric == "speedup" else baseline_speed
    if metric == "block_efficiency" or not (baseline_speed and baseline_speed.value):
        return None
    speeds = []
    chance = find_relative_chance_difference(to_rows(rows), metric)
    for row in to_rows(rows):
        value, low, high = (number or 0.0 for number in get_number_and_ends(row, metric))
        ends = (low / (baseline_speed.high or inf), high / (baseline_speed.low or inf))
        is_seed_bound = bool(get_empty_reason(row, SEEDS))
        speed = Interval(value / baseline_speed.value, *ends, between_seeds_share=is_seed_bound)
        doubt = get_timing_doubt(row) or _explain_within_chance(speed.value, chance)
        prompts = get_number(row, "prompts") or 0
        speeds.append(DecoderSpeed(format_marked_decoder_and_tree(row), speed, prompts, doubt))
    stage = " (confirm.prompts)" if rows.iloc[0].get("stage") == "confirm" else ""
    return choose_decoder(speeds, f"prompts{stage}")


def _explain_within_chance(speed: float, chance: float) -> str:
    """Describes a speed-up over 1 that is within the chance difference; "" for any other."""
    if not 1 < speed <= 1 + chance:
        return ""
    return f"within chance: two names of one configuration differ by {chance:.1%}"


def _format_value(winner: pd.Series, metric: str, cells_covered: int) -> tuple[str, str]:
    """Formats the value with its unit, and its interval, widened for ``cells_covered`` cells."""
    digits = 1 if metric == "token_rate" else 2
    unit = {"speedup": "×", "token_rate": " tokens/s"}.get(metric) or f" {get_column(metric).title}"
    ends = widen_interval(winner, metric, cells_covered)
    interval = format_ends(*ends, f".{digits}f", "{} to {}") if ends else ""
    return f"{winner[metric]:.{digits}f}{unit}", interval


def widen_interval(
    row: Row | pd.Series, metric: str, cells_covered: int
) -> tuple[float, float] | None:
    """Widens a row's interval to hold for ``cells_covered`` cells at once; None if it has none."""
    value, low, high = (number or 0.0 for number in get_number_and_ends(row, metric))
    return bonferroni_ends((value, low, high), get_number(row, "prompts") or 0, cells_covered)


def _describe_prompts_and_cells(
    rows: pd.DataFrame, metric: str, choice: DecoderChoice | None
) -> str:
    """Describes the basis of the answer: prompts, and cells that the intervals cover at once."""
    basis = format_prompt_count(rows)
    if basis and SEEDS in rows and (commas := rows[SEEDS].dropna().str.count(",").max()):
        basis += f" and {commas + 1:.0f} seeds"
    cells = f"{len(rows)} {'confirmed ' if rows.iloc[0].get('stage') == 'confirm' else ''}cells"
    has_intervals = f"{metric}_low" in rows and rows[f"{metric}_low"].notna().any()
    if has_intervals and (choice is None or choice.answer != "AR"):
        cells = f"intervals corrected for {cells}"
    return ", ".join(filter(None, [basis, cells if len(rows) > 1 else ""]))


def _describe_faster_generate(group: Group, metric: str) -> str:
    """Describes how much faster transformers' plain decoding is than ours; "" if not surely."""
    times = find_generate_speedup_over_ours(to_rows(group.rows)) if metric == "speedup" else 0.0
    return f"transformers' generate is {times:.2f}× as fast as AR" if times else ""


def _describe_certainty(
    rows: pd.DataFrame,
    best: pd.Series,
    close_rows: pd.DataFrame,
    winner: pd.Series,
    metric: str,
    is_alone: bool,
) -> str:
    if get_number(best, f"{metric}_low") is None:
        return "without an interval" if metric != "block_efficiency" else "no speed was measured"
    if len(rows) == 1:
        if best.get("stage") == "confirm":
            return "the only one on fresh prompts"
        only_measured = is_alone or best.lossless != "exact"
        return "the only one measured here" if only_measured else "the only exact one"
    if len(close_rows) == 1:
        return "ahead of all others"
    tie_text = f"tied with {len(close_rows) - 1} other{'s' if len(close_rows) > 2 else ''}"
    tie_text += " by overlapping intervals"
    if LEAD in close_rows:
        tie_text += ", the fastest on all prompts of the search"
    elif winner.name != best.name:
        tie_text += f", the simplest within {CLOSE:.0%} of {format_marked_decoder_and_tree(best)}"
    fastest = close_rows.loc[close_rows[metric].idxmax()]
    title = format_marked_decoder_and_tree(fastest)
    looks = f"; {title} looks faster ({fastest[metric]:.2f}), not surely"
    return tie_text + (looks if fastest.name != best.name else "")


def _select_close_rows(rows: pd.DataFrame, best: pd.Series, metric: str) -> pd.DataFrame:
    """Selects the best row and its ties: overlapping intervals, or a difference within chance."""
    is_best = rows.index == best.name
    if get_number(best, f"{metric}_low") is None:
        return rows[is_best]
    is_slower = rows[f"{metric}_high"] < best[f"{metric}_low"]
    chance = 1 + find_relative_chance_difference(to_rows(rows), metric)
    return rows[is_best | ~(is_slower & (rows[metric] * chance < best[metric]))]


def _pick_simplest(close_rows: pd.DataFrame, metric: str) -> pd.Series:
    """Picks the row with the fewest nodes, then draft calls, among those within ``CLOSE`` of the
    best; the best if sizes are missing. In a search, picks the row that leads on all prompts.
    """
    if LEAD in close_rows:
        return close_rows.loc[close_rows[LEAD].idxmax()]
    close_rows = close_rows[close_rows[metric] >= (1 - CLOSE) * close_rows[metric].max()]
    if any(name not in close_rows or close_rows[name].isna().any() for name in _SIZE):
        return close_rows.loc[close_rows[metric].idxmax()]
    return close_rows.loc[close_rows[_SIZE].round().sort_values(_SIZE, kind="stable").index[0]]


_MAX_NAMED = 3  # decoders, and tasks of each, that a sentence names
_OF_STAGES = ("stage ", "prompts ")


def list_headline_sentences(results_file: Path, run_ids: Collection[str]) -> list[str]:
    """Lists the headlines of these runs as sentences; a report on a results file ends with them."""
    rows = read_results_file(results_file)
    rows = pool_seeds(rows[rows.run_id.isin([*run_ids])], RecordReader(results_file))
    return [line.sentence for line in make_headlines(group_rows(rows))]


def make_headlines(groups: Sequence[Group]) -> list[Headline]:
    """Makes the headlines of groups; leaves out groups that have none."""
    return [line for group in groups if (line := make_headline(group))]


def format_answer(headlines: Sequence[Headline]) -> str:
    """Formats an experiment's conclusion in one sentence; "" if there are no headlines."""
    if len(headlines) < 2:
        return "".join(line.sentence for line in headlines)
    pairs = len({line.pair for line in headlines}) > 1
    open_answers = {line.decoder for line in headlines if not line.decoder_name}
    decoders = Counter(line.decoder for line in headlines).most_common(_MAX_NAMED)
    decoders.sort(key=lambda line: line[0] in open_answers)
    uses = [
        _describe_use(name, [line for line in headlines if line.decoder == name], pairs)
        for name, _ in decoders
    ]
    other_count = len(headlines) - sum(count for _, count in decoders)
    uses += [f"others on {other_count} more"] if other_count else []
    text = f"{'' if decoders[0][0] in open_answers else 'use '}{'; '.join(uses)}"
    ties = sum(line.tied_and_all_counts[0] > 1 for line in headlines)
    tie_text = f" (tied with others on {ties} of {len(headlines)})" if ties else ""
    return f"{text[0].upper()}{text[1:]}{tie_text}."


def _describe_use(decoder: str, headlines: Sequence[Headline], with_pairs: bool) -> str:
    """Describes the tasks on which to use a decoder, with the range of its values."""
    titles = []
    for line in headlines:  # without the settings in which the stages of a search differ
        parts = [part for part in line.task.split(", ") if not part.startswith(_OF_STAGES)]
        titles.append(f"{', '.join(parts)}{f' ({line.pair})' if with_pairs else ''}")
    tasks = Counter(title.partition(", ")[0] for title in titles)
    if len(titles) > len(tasks):
        titles = [f"{task} ({n} settings)" if n > 1 else task for task, n in tasks.items()]
    places = ", ".join(titles[:_MAX_NAMED])
    places += f" and {len(titles) - _MAX_NAMED} more" if len(titles) > _MAX_NAMED else ""
    if headlines[0].decoder_name in ("", "ar"):
        return f"{decoder} on {places}"
    values = sorted(line.value for line in headlines)
    return f"{decoder} on {places}: {' to '.join(dict.fromkeys((values[0], values[-1])))}"
