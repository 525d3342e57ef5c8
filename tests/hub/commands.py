"""Every command on published pairs that the report, the recipes and the READMEs print."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from spec_bench.report.papers.items import read_recipe
from spec_bench.report.papers.paper import load_paper, paper_names, recipes_by_name
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import list_paper
from spec_bench.system.files import training_command, training_of
from tests.hub.models import published_pairs

ROOT = Path(__file__).resolve().parents[2]
BEGIN = ("spec-bench ", "python -m spec_bench.train ")
SCRIPT, RUN, TRAIN = "spec-bench", "spec_bench", "spec_bench.train"
PRINTED_IN = ("README.md", "docs/*.md", "experiments/README.md", "experiments/*/README.md")
COMMENTED = ("experiments/*/*.yaml", "conf/*.yaml", "conf/*/*.yaml")


@dataclass(frozen=True)
class Command:
    """A printed command.

    Attributes:
        text: as printed, on one line.
        places: who prints it.
    """

    text: str
    places: tuple[str, ...]

    @property
    def module(self):
        return module_of(shlex.split(self.text))[0]

    @property
    def trains(self):
        """Whether it trains heads, which others decode with."""
        return self.module == TRAIN

    @property
    def words(self):
        """What follows the module."""
        return module_of(shlex.split(self.text))[1]

    @property
    def settings(self):
        return dict(word.split("=", 1) for word in self.words if "=" in word)

    @property
    def recipe(self):
        """Such as ``rsd=exp1``."""
        known = recipes_by_name().values()
        return next((word for word in self.words if word in known), None)

    @property
    def jobs(self):
        """How many the sweep has, as far as the command and its recipe say."""
        swept = dict(self.settings)
        if self.recipe is not None:
            swept = {**sweeps(self.recipe), **swept}
        count = 1
        for name, value in swept.items():
            if name.split(".")[0] in ("pair", "task", "generation", "engine") and "[" not in value:
                count *= value.count(",") + 1
        return count

    def first_job(self):
        """The same, of each swept setting the first value alone."""
        words = []
        for word in self.words:
            name, equals, value = word.partition("=")
            several = equals and "," in value and not value.startswith(("[", "{"))
            words.append(f"{name}={value.split(',')[0]}" if several else word)
        program = [SCRIPT] if self.module == RUN else ["python", "-m", self.module]
        return Command(shlex.join([*program, *words]), self.places)


def module_of(words):
    """The module that a command line runs, and what follows it."""
    return (RUN, [*words[1:]]) if words[0] == SCRIPT else (words[2], [*words[3:]])


def few_of_each(commands, count):
    """So many of each paper, and of trainings; as many recipes of it as there are."""
    places = {}
    ranked = []
    for number, command in enumerate(commands):
        key = command.recipe or command.module
        ranked.append((places.setdefault(key, 0), number))
        places[key] += 1
    few = {}
    for _, number in sorted(ranked):
        command = commands[number]
        paper = TRAIN if command.trains else (command.recipe or "").split("=")[0]
        few.setdefault(paper, []).append(command)
    return [each for paper, own in few.items() if paper for each in own[:count]]


def sweeps(recipe):
    """What a recipe sweeps over unless told."""
    params = read_recipe(recipe).get("hydra", {}).get("sweeper", {}).get("params", {})
    return {name: str(value) for name, value in params.items()}


@functools.cache
def printed_commands():
    """All of them, each once; the cheaper first."""
    places = {}
    for place, text in (*_of_the_report(), *_of_files(), *_of_refusals()):
        if _published(text) and place not in places.setdefault(text, []):
            places[text].append(place)
    commands = [Command(text, tuple(where)) for text, where in places.items()]
    return sorted(commands, key=lambda each: each.jobs)


def _of_the_report():
    """What ``report list`` prints, and what stands under each table, with nothing measured."""
    nothing = Measured.below(Path("no such folder"))
    for name in paper_names():
        paper = load_paper(name)
        for line in list_paper(paper, nothing).splitlines():
            if line.strip().startswith(BEGIN):
                yield f"list {name}", line.strip()
        for item in paper.tables:
            for command in build_table(item, nothing).commands:  # type: ignore[arg-type]
                yield f"table {item.name}", command


def _of_files():
    """What READMEs show in their blocks, and configs in their comments."""
    for path in (path for pattern in PRINTED_IN for path in sorted(ROOT.glob(pattern))):
        for block in re.findall(r"^```\n(.*?)^```", path.read_text(), re.M | re.S):
            yield from _lines(str(path.relative_to(ROOT)), block)
    for pattern in COMMENTED:
        for path in sorted(ROOT.glob(pattern)):
            found = re.findall(r"^#\s+(spec-bench .*)$", path.read_text(), re.M)
            yield from _lines(str(path.relative_to(ROOT)), "\n".join(found))


def _of_refusals():
    """What a job says whose pair's heads are still to be trained."""
    for pair in published_pairs():
        for kind, heads in pair.get("heads", {}).items():
            if name := training_of(Path(heads)):
                yield "refusal", training_command(kind, pair["name"], name)


def _lines(place, text):
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip().startswith(BEGIN):
            yield place, shlex.join(shlex.split(line, comments=True))


def _published(text):
    """Whether a command decodes or trains with what lies on the hub."""
    command = Command(text, ())
    if command.module not in (RUN, TRAIN) or command.words[:1] == ["serve"]:
        return False
    pairs = list(published_pairs())
    names = {pair["name"] for pair in pairs}
    ids = {pair[model] for pair in pairs for model in ("target", "draft")}
    settings = command.settings
    if names & set(settings.get("pair", "").split(",")):
        return True
    models = [settings.get(f"pair.{one}") for one in ("target", "draft")]
    return bool(ids & {m for m in models if m}) or settings.get("task.source.kind") == "hub"
