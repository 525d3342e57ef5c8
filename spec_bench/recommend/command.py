"""The command line of ``spec-bench recommend``; what it does is in ``recommend``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.jobs.app import settings_of
from spec_bench.jobs.config.compose import one_line, recipe_arguments, register
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.recommend.needed import lines_of
from spec_bench.recommend.recommend import NUMBERS, Recommendation, recommend
from spec_bench.report.page.build import render
from spec_bench.settings.configs import conf_dirs
from spec_bench.system import files
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import ENDS
from spec_bench.vocabulary.numbers import ends_of

_NOT_HERE = {
    "plan": "decodes what it chooses from; a job has plan=true",
    "sink.wandb.enabled": "logs nothing; the job that it recommends does",
}
_OF_THE_SEARCH = ("prompts=", "confirm", "cells=", "budget=", "length=", "name=")
_OF_A_DECODER = ("decoder=", "decoder.", "spec=")  # the answer names these itself
_HEADS = ("decoder", "prompts", "tokens a call", "speed-up")


def main(overrides: Sequence[str]) -> int:
    """The command: prints the candidates and the answer in three lines, and writes its page.

    Returns:
        The exit status, 2 for settings that cannot be right.
    """
    register()
    try:
        arguments = ["experiment=recommend", "sink=quiet", "sink.progress=true"]
        arguments += recipe_arguments(list(overrides))
        with initialize_config_dir(str(conf_dirs()[0]), version_base="1.3"):
            config = compose("config", overrides=arguments)
        for key, asked in _NOT_HERE.items():
            if value := OmegaConf.select(config, key):
                raise ValueError(f"{key}={value}: recommend {asked}")
        settings = settings_of(config)
        found = recommend(settings, lambda line: print(line, file=sys.stderr, flush=True))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        print(f"spec_bench: {one_line(error)}", file=sys.stderr)
        return 2
    told, needs = [*found.answer(), command_of(found, overrides)], lines_of(found.needed)
    lines = [_HEADS, *([text for _, text in line] for line in _lines(found.candidates))]
    wide = [max(len(line[place]) for line in lines) for place in range(len(_HEADS))]
    table = ["  ".join(map(str.ljust, line, wide)).rstrip() for line in lines]
    print("\n".join([*table, "", *needs, *([""] if needs else []), *told]))
    print(f"page: {_page(settings, found, told, needs)}")
    return 0


def command_of(found: Recommendation, overrides: Sequence[str]) -> str:
    """The job that uses what is recommended, on the settings that were asked for."""
    others = (*_OF_THE_SEARCH, *_OF_A_DECODER)
    kept = [each for each in overrides if not each.lstrip("+").startswith(others)]
    decoder, spec = found.cell
    tree = [] if decoder == "ar" or spec == "-" else [f"spec={spec}"]
    return " ".join(["spec-bench", *kept, f"decoder={decoder}", *tree])


def _page(settings: JobSettings, found: Recommendation, told: list[str], needs: list[str]) -> Path:
    """Writes the page below ``results/NAME``."""
    page = files.results_file(settings.results, settings.asked.name).with_name(
        f"recommend-{settings.pair.name}-{settings.task.name}.html"
    )
    text = render(
        "recommended.html.j2",
        pair=settings.pair.name,
        task=names.task(settings.task.name),
        temperature=settings.sampling.temperature,
        told=told,
        heads=_HEADS,
        lines=list(_lines(found.candidates)),
        needs="\n".join(needs),
    )
    files.write_text(page, text)
    return page


def _lines(candidates: pd.DataFrame) -> Iterator[list[tuple[str, str]]]:
    """Each candidate's cells: what each is sorted by, and its text."""
    for row in candidates.to_dict("records"):
        title, prompts = f"{row['decoder']} {row['spec']}".removesuffix(" -"), str(row["prompts"])
        cells = [(title, title), (prompts, f"{prompts}{' fresh' if row['fresh'] else ''}")]
        for name in NUMBERS:
            value, low, high = (row[f"{name}{end}"] for end in ("", *ENDS))
            text = "-" if pd.isna(value) else f"{value:.2f} {ends_of(low, high, '.2f')}".strip()
            cells.append(("" if pd.isna(value) else f"{value:.4f}", text))
        yield [*cells[:-1], ("", f"failed: {row['failed']}")] if row["failed"] else cells
