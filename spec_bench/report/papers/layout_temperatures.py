"""ReDrafter's Table 2: the exact rule against typical acceptance over temperatures.

Paper: Recurrent Drafter for Fast Speculative Decoding in Large Language Models, arXiv:2403.09919.
Its baseline is greedy autoregressive decoding at every temperature.
"""

from __future__ import annotations

from spec_bench.report.papers.grid import Cell, Column, Grid, Line, Wanted, mark_best
from spec_bench.report.papers.index import Item, Paper, recipe_cells
from spec_bench.report.papers.layout_heads import NO_JUDGE, TASK
from spec_bench.report.papers.pairs import wanted_pair
from spec_bench.report.papers.reference import Row, reference_rows

_METHODS = {
    "greedy": ("greedy AR", "ar"),
    "rejection": ("exact (rejection sampling)", "redrafter"),
    "typical": ("typical acceptance", "redrafter_typical"),
}
_COLUMNS = (
    Column("setting", "beams (not printed)", best=False, text=True),
    Column("speedup", "speedup over greedy AR", digits=2, best=False),
    Column("own_speedup", "over AR of the same temperature", digits=2, best=False),
    Column("tokens_per_step", "tokens/step", digits=2, best=False),
    Column("quality", "quality", digits=2, best=False),
)
_NOTES = (
    "The paper's baseline is greedy AR at every temperature, and so is that of our first column: a "
    "ratio of token rates of two jobs, whose prompts are the same and whose texts are not. The "
    "second one is over AR of the same temperature and job, paired by prompt.",
    "The paper names neither target nor beams of this table; its text speaks of Vicuna 7B. It "
    "prints epsilon = 0.3 and delta = 0.09 for typical acceptance, which makes epsilon inert; ours "
    "are Medusa's, 0.09 and 0.3.",
    "Quality: MT-bench score over that of greedy AR; needs a judge, without one it is empty.",
)


def layout(paper: Paper, item: Item, pair: str | None) -> Grid:
    """The table of printed numbers.

    Args:
        paper: ReDrafter.
        item: the table.
        pair: the one pair whose rows are wanted; None: the text's. Another pair gets lines of its
            own.
    """
    target = str(item.settings["target"])
    wanted = wanted_pair(target, "", pair)
    printed: dict[tuple[str, float], dict[str, Row]] = {}
    for row in reference_rows(paper, item.number):
        own = printed.setdefault((row["acceptance"], float(row["temperature"])), {})
        own[row["metric"]] = row
    lines = [_line("paper's", item, *key, values, wanted) for key, values in printed.items()]
    if wanted:
        lines.insert(1, _line("paper's", item, "rejection", 0.0, {}, wanted, extra=True))
    elif pair:
        lines += [_line(pair, item, *key, {}, pair) for key in printed]
        extra = _line(pair, item, "rejection", 0.0, {}, pair, extra=True)
        lines.insert(len(printed) + 1, extra)
    return Grid(
        name=item.name,
        title=item.title,
        heads=("target", "decoding", "temperature"),
        columns=_COLUMNS,
        lines=mark_best(lines, _COLUMNS),
        notes=_NOTES,
    )


def _line(
    target: str,
    item: Item,
    acceptance: str,
    temperature: float,
    values: dict[str, Row],
    pair: str | None,
    extra: bool = False,
) -> Line:
    """One rule of acceptance at one temperature."""
    title, decoder = _METHODS[acceptance]
    wanted = greedy = None
    if pair is not None:
        specs = {name: spec for name, _, spec in _cells(item)} | {"ar": "-"}
        pick = Wanted(pair, TASK, decoder, specs[decoder], temperature, pick="preferred")
        wanted, greedy = pick, Wanted(pair, TASK, "ar", "-", 0.0)
    speed, quality = values.get("speedup", {}), values.get("quality", {})
    baseline = decoder == "ar"
    cells = (
        Cell(wanted=wanted, column="setting"),
        Cell(
            speed.get("value", ""),
            speed.get("plus_minus", ""),
            wanted=wanted,
            column="speedup" if baseline else "token_rate",
            over=None if baseline else greedy,
        ),
        Cell(wanted=wanted, column="speedup"),
        Cell(wanted=wanted, column="block_efficiency"),
        Cell(
            quality.get("value", ""),
            quality.get("plus_minus", ""),
            wanted=wanted,
            column="judge_score",
            over=None if baseline else greedy,
            state=NO_JUDGE if wanted else "",
        ),
    )
    return Line((target, title, f"{temperature:g}"), cells, f"{target}/{acceptance}", extra)


def _cells(item: Item) -> list[tuple[str, str, str]]:
    return [cell.partition(":") for cell in recipe_cells(item.recipes[0])]
