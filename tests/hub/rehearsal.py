"""Printed commands, run as printed against the stand-in hub with words appended; what came out.

The words make a job small (one prompt, a few tokens) and put the CPU in the GPU's place. All
commands share one results folder: what one has measured, another finds complete.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_bench.files import read_csv, results_file
from spec_bench.report.paper import load_paper
from spec_bench.report.recipes import read_recipe, recipe_name
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import progress_of
from spec_bench.tasks.source import EMBEDDED
from tests.hub.commands import TRAIN, Command, sweeps
from tests.hub.data import write_datasets
from tests.hub.models import TOKEN, write_models
from tests.hub.server import serving

LIMIT_S = 1500
TRAINED = "results/train/redrafter_vicuna_7b_blocks4/heads"  # where a printed training leaves them
_LENGTHS = "generation.max_new_tokens"


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    Attributes:
        command: as printed.
        kind: ``rows``, ``plan``, ``heads``, ``refused`` or ``failed``.
        detail: how many rows in which tables, or the reason in one line.
        seconds: how long it took.
    """

    command: Command
    kind: str
    detail: str
    seconds: float


@contextlib.contextmanager
def stand_in(folder: Path) -> Iterator[dict[str, str]]:
    """A served hub; gives the environment in which commands find it."""
    write_models(folder / "hub")
    write_datasets(folder / "hub")
    with serving(folder / "hub") as url:
        yield environment(url, folder)


def environment(url: str, folder: Path) -> dict[str, str]:
    """What a command's process needs to ask the stand-in, and nothing that an earlier one kept."""
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "offline",
    }


def prepare(folder: Path) -> None:
    """What a user has at hand where the commands run: chats to learn from, Spider's databases."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (EMBEDDED / "alpaca.jsonl").read_text(encoding="utf-8").splitlines()[:12]
    rows = [json.loads(line) for line in lines]
    chats = [
        {
            "id": str(index),
            "conversations": [
                {"from": "human", "value": row["instruction"]},
                {"from": "gpt", "value": row["output"]},
            ],
        }
        for index, row in enumerate(rows)
    ]
    (folder / "sharegpt.json").write_text(json.dumps(chats))
    if not (folder / "spider_data").exists():
        shutil.copytree(EMBEDDED / "spider" / "database", folder / "spider_data" / "database")


def appended(command: Command, brief: bool = False) -> list[str]:
    """The words that make a command small.

    Args:
        command: which.
        brief: leave out most of a recipe's cells, too.
    """
    settings = command.settings
    words = ["engine.device=cpu"] if settings.get("engine") == "cuda" else []
    if command.module == TRAIN:
        return [*words, "optimiser.steps=2", "optimiser.batch=4", "data.answers.max_new_tokens=4",
                "data.answers.batch_size=4"]  # fmt: skip
    words.append("prompts=1")
    recipe = command.recipe
    swept = sweeps(recipe) if recipe else {}
    words.append(f"{_LENGTHS}={'4,8' if _LENGTHS in swept else '4'}")
    if settings.get("energy"):
        words.append("energy=none")
    if recipe and "confirm" in read_recipe(recipe):
        words.append("confirm.prompts=1")
    if "FOLDER" in settings.get("pair.heads.redrafter", ""):
        words.append(f"pair.heads.redrafter={TRAINED}")
    if brief and recipe:
        words += _few_cells(recipe)
    return words


def _few_cells(recipe: str) -> list[str]:
    """The recipe's first trees alone."""
    if recipe == "rsd=exp1":
        return ["length=2"]
    if recipe == "rsd=exp2":
        return ["budget=6"]
    named = [cell for cell in read_recipe(recipe)["cells"] if isinstance(cell, str)][:2]
    return [f"cells=[{','.join(named)}]"] if named else []


def rehearse(
    command: Command, folder: Path, variables: Mapping[str, str], brief: bool = False
) -> Outcome:
    """Runs a command in the folder, as its user would, to its end."""
    from tests import warm  # keeps the variables as they are now

    began = time.monotonic()
    words = [*command.words, *appended(command, brief)]
    started = warm.Command(command.module, words, folder, variables)
    try:
        status, out, err = started.finish(LIMIT_S)
    except TimeoutError as error:
        status, out, err = -1, "", str(error)
    seconds = time.monotonic() - began
    if status == 2:
        return Outcome(command, "refused", _last(err), seconds)
    if status:
        return Outcome(command, "failed", f"status {status}: {_last(err)}", seconds)
    kind, detail = _result(command, folder, out)
    left_out = {line for line in err.splitlines() if "left out:" in line}
    told = f"; cells left out: {len(left_out)}" if left_out else ""
    return Outcome(command, kind, detail + told, seconds)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"


def _result(command: Command, folder: Path, out: str) -> tuple[str, str]:
    """What a command that ended well left behind."""
    if command.settings.get("plan") == "true":
        return "plan", f"{len(out.splitlines())} lines"
    if command.module == TRAIN:
        name = command.settings.get("name") or command.settings.get("head") or "*"
        heads = folder / "results" / "train"
        there = sorted({file.name for file in heads.glob(f"{name}/**/heads/*")})
        return ("heads", ", ".join(there)) if there else ("failed", f"nothing in {heads}")
    name = recipe_name(command.recipe) if command.recipe else "default"
    file = results_file(folder / "results", name)
    rows = read_csv(file) if file.is_file() else []
    own = [row for row in rows if _asked_for(row, command)]
    wrong = [row for row in own if row["status"] != "complete"]
    if wrong or not own:
        first = f": {wrong[0]['decoder']} {wrong[0]['reason']}" if wrong else ""
        return "failed", f"{len(wrong)} of {len(own)} rows are not complete{first}"
    return "rows", f"{len(own)} rows; {_tables(command, folder) or file.relative_to(folder)}"


def _asked_for(row: Mapping[str, str], command: Command) -> bool:
    pairs, tasks = (command.settings.get(each, "").split(",") for each in ("pair", "task"))
    return (pairs == [""] or row["pair"] in pairs) and (tasks == [""] or row["task"] in tasks)


def _tables(command: Command, folder: Path) -> str:
    """How full the tables are that show the command's pairs."""
    if command.recipe is None:
        return ""
    paper = load_paper(command.recipe.partition("=")[0])
    measured = Measured.below(folder / "results")
    pairs = command.settings.get("pair", "").split(",")
    counts: dict[str, list[int]] = {}
    for item in paper.items:
        if command.recipe not in item.recipes:
            continue
        for progress in progress_of(paper, item, measured):
            if progress.own and progress.pair in pairs and progress.measured:
                count = counts.setdefault(f"{item.kind} {item.name}", [0, 0])
                count[0] += progress.measured
                count[1] += progress.needed
    return ", ".join(f"{name} {done}/{all_}" for name, (done, all_) in counts.items())


def totals(outcomes: Sequence[Outcome]) -> str:
    """One line: how many were tried, how many did what."""
    kinds = [outcome.kind for outcome in outcomes]
    ran = sum(kind in ("rows", "plan", "heads") for kind in kinds)
    return (
        f"{len(kinds)} commands tried, {ran} run, {kinds.count('refused')} refused, "
        f"{kinds.count('failed')} failed"
    )
