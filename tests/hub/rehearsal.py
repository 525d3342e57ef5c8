"""Printed commands, run as printed against the stand-in hub with words appended; what came out.

The words make a job small (one prompt, a few tokens, the first few cells of each kind) and put the
CPU in the GPU's place. All commands share one results folder: what one has measured, another finds
complete.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from spec_bench.report.papers.items import read_recipe, recipe_name
from spec_bench.report.papers.paper import load_paper
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import progress_of
from spec_bench.system.files import read_csv, results_file
from spec_bench.tasks.source import EMBEDDED
from tests.hub.commands import Command, sweeps
from tests.hub.data import write_questions
from tests.hub.forked import Forked

LIMIT_S = 900
TRAINED = "results/train/redrafter_vicuna_7b_blocks4/heads"  # where a printed training leaves them
RAN = ("rows", "plan", "heads", "trees")
_LENGTHS = "generation.max_new_tokens"
_GRID = "{grid:{decoder:%s,factors:[1,2],most:2,depths:[1,2],order:any}}"


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    Attributes:
        command: as printed.
        kind: one of ``RAN``, ``refused`` or ``failed``.
        detail: how many rows in which tables, or the reason in one line.
        seconds: how long it took.
        cpu_s: how much of that cores were at work, all together.
    """

    command: Command
    kind: str
    detail: str
    seconds: float
    cpu_s: float


@dataclass
class Notes:
    """What became of the commands so far, a line each: a rehearsal goes on where it stopped.

    Attributes:
        file: where they are kept.
    """

    file: Path

    def ran(self, commands, whole):
        """The commands that have run before, as they did then."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("}")]
        known = {each["text"]: each for each in notes if each["whole"] >= whole}
        found = [(each, known[each.text]) for each in commands if each.text in known]
        return [
            Outcome(command, note["kind"], note["detail"], note["seconds"], note["cpu_s"])
            for command, note in found
            if note["kind"] in RAN
        ]

    def add(self, outcome, whole):
        """One more."""
        own = asdict(outcome) | {"text": outcome.command.text, "whole": whole}
        del own["command"]
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(own) + "\n")


def prepare(folder):
    """What a user has at hand where the commands run: chats, questions, Spider's databases."""
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
    write_questions(folder / "question.jsonl")
    if not (folder / "spider_data").exists():
        shutil.copytree(EMBEDDED / "spider" / "database", folder / "spider_data" / "database")


def appended(command, whole=False):
    """The words that make a command small.

    Args:
        command: which.
        whole: leave its cells as they are.
    """
    settings = command.settings
    words = ["engine.device=cpu"] if settings.get("engine") == "cuda" else []
    if command.trains:
        return [*words, "optimiser.steps=2", "optimiser.batch=4", "data.answers.max_new_tokens=4",
                "data.answers.batch_size=4"]  # fmt: skip
    words += ["prompts=1", "warmup=0"]
    recipe = command.recipe
    swept = sweeps(recipe) if recipe else {}
    words.append(f"{_LENGTHS}={'4,8' if _LENGTHS in swept else '4'}")
    if "seed" in swept:
        words.append("seed=0")
    if settings.get("energy"):
        words.append("energy=none")
    if recipe and "confirm" in read_recipe(recipe):
        words += ["confirm.prompts=1", "confirm.best=1"]
    if "FOLDER" in settings.get("pair.heads.redrafter", ""):
        words.append(f"pair.heads.redrafter={TRAINED}")
    if recipe and not whole and settings.get("plan") != "true":
        words += _few_cells(recipe)
    return words


def _few_cells(recipe):
    """Of a recipe's trees the first of each kind."""
    given = read_recipe(recipe)
    for each in given.get("defaults", []):
        for group in ("length", "budget"):
            if isinstance(each, dict) and f"override /{group}" in each:
                return [f"{group}={each[f'override /{group}'][0]}"]
    kinds = {}
    for cell in given.get("cells", []):
        if isinstance(cell, str):
            kinds.setdefault(cell.partition(":")[0], cell)
        elif "grid" in cell:
            kinds.setdefault("grid", _GRID % cell["grid"]["decoder"])
        else:
            return []  # settings of each cell's own: all are of different kinds
    return [f"cells=[{','.join(kinds.values())}]"] if kinds else []


def started(command, folder, whole):
    """The command at work in the folder, as its user would run it."""
    words = [*command.words, *appended(command, whole)]
    return Forked(command.module, words, folder, LIMIT_S)


def outcome_of(command, ended, folder):
    """What became of it."""
    status, out, err, *times = ended
    if status == 2:
        return Outcome(command, "refused", _last(err), *times)
    if status:
        return Outcome(command, "failed", f"status {status}: {_last(err)}", *times)
    kind, detail = _result(command, folder, out)
    left_out = {line for line in err.splitlines() if "left out:" in line}
    told = f"; cells left out: {len(left_out)}" if left_out else ""
    return Outcome(command, kind, detail + told, *times)


def _last(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"


def _result(command, folder, out):
    """What a command that ended well left behind."""
    if command.settings.get("plan") == "true":
        return "plan", f"{len(out.splitlines())} lines"
    if command.trains:
        name = command.settings.get("name") or command.settings.get("head") or "*"
        heads = folder / "results" / "train"
        there = sorted({file.name for file in heads.glob(f"{name}/**/heads/*")})
        return ("heads", ", ".join(there)) if there else ("failed", f"nothing in {heads}")
    if command.words[0] == "fit_tree":
        pair, tasks = command.settings["pair"], command.settings["task"].split(",")
        fits = [sorted((folder / "results/trees").glob(f"{pair}-{task}-*")) for task in tasks]
        names = ", ".join(file.name for task in fits for file in task)
        return ("trees", names) if all(fits) else ("failed", f"no trees of some of {tasks}")
    name = command.settings.get("experiment", "default")
    name = recipe_name(command.recipe) if command.recipe else name
    file = results_file(folder / "results", name)
    rows = read_csv(file) if file.is_file() else []
    own = [row for row in rows if _asked_for(row, command)]
    wrong = [row for row in own if row["status"] != "complete"]
    if wrong or not own:
        first = f": {wrong[0]['decoder']} {wrong[0]['reason']}" if wrong else ""
        return "failed", f"{len(wrong)} of {len(own)} rows are not complete{first}"
    return "rows", f"{len(own)} rows; {_tables(command, folder) or file.relative_to(folder)}"


def _asked_for(row, command):
    pairs, tasks = (command.settings.get(each, "").split(",") for each in ("pair", "task"))
    return (pairs == [""] or row["pair"] in pairs) and (tasks == [""] or row["task"] in tasks)


def _tables(command, folder):
    """How full the tables are that show the command's pairs."""
    if command.recipe is None:
        return ""
    paper = load_paper(command.recipe.partition("=")[0])
    measured = Measured.below(folder / "results")
    pairs = command.settings.get("pair", "").split(",")
    counts = {}
    for item in paper.items:
        if command.recipe not in item.recipes:
            continue
        for progress in progress_of(paper, item, measured):
            if progress.in_paper and progress.pair in pairs and progress.measured:
                count = counts.setdefault(f"{item.kind} {item.name}", [0, 0])
                count[0] += progress.measured
                count[1] += progress.needed
    return ", ".join(f"{name} {done}/{all_}" for name, (done, all_) in counts.items())


def totals(outcomes):
    """One line: how many were tried, how many did what."""
    kinds = [outcome.kind for outcome in outcomes]
    ran = sum(kind in RAN for kind in kinds)
    return (
        f"{len(kinds)} commands tried, {ran} run, {kinds.count('refused')} refused, "
        f"{kinds.count('failed')} failed; {sum(each.cpu_s for each in outcomes):.0f} s of cores"
    )
