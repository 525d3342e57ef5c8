"""Every command that README, the manual, the recipes and the report print, and what it asks for."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import yaml

from spec_bench.jobs.config.flags import FLAGS, flags_to_overrides
from spec_bench.report.papers.items import read_recipe
from spec_bench.report.papers.paper import find_recipes_by_folder, list_paper_names, load_paper
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.report.tables.progress import format_progress_and_commands
from spec_bench.settings.arguments import split_known_command
from spec_bench.settings.configs import get_conf_dir
from spec_bench.system.files import format_training_command, get_training_name_of_heads

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "experiments").rglob("README.md")),
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPT = "spec-bench"
PROGRAMS = "make|spec-bench|python3?|torchrun|accelerate|wandb|pip|cmake"
COMMAND = re.compile(rf"(?:\w+=\S+ )?({PROGRAMS}) ")
BEGIN = "spec-bench "
RUN, TRAIN = "spec_bench", "spec_bench.train"
COMMENTED = ("experiments/*/*.yaml", "conf/*.yaml", "conf/*/*.yaml")
TRAINED = "results/train/redrafter_vicuna_7b_blocks4/heads"  # where a printed training leaves them
LENGTHS = "generation.max_new_tokens"
GRID = "{grid:{decoder:%s,factors:[1,2],most:2,depths:[1,2],order:any}}"


@cache
def published_pairs():
    """The pairs of ``conf/pair`` whose models lie on the hub."""
    found = sorted((get_conf_dir() / "pair").glob("*.yaml"))
    pairs = [yaml.safe_load(file.read_text("utf-8")) for file in found]
    return [pair for pair in pairs if "/" in pair.get("target", "")]


def sweeps(recipe):
    """What a recipe sweeps over unless told."""
    params = read_recipe(recipe).get("hydra", {}).get("sweeper", {}).get("params", {})
    return {name: str(value) for name, value in params.items()}


@dataclass(frozen=True)
class Command:
    """A printed command on one line, without what is said behind ``#``, and who prints it."""

    text: str
    places: tuple[str, ...]

    @cached_property
    def words(self):
        return shlex.split(self.text)

    @property
    def module(self):
        """The module of ours that it runs; empty if none."""
        words = self.words
        return RUN if words[0] == SCRIPT else words[2] if words[:2] == ["python", "-m"] else ""

    @property
    def arguments(self):
        return self.words[1 if self.words[0] == SCRIPT else 3 :]

    @property
    def kind(self):
        """Which command of ours it is, such as ``table``; empty if none."""
        return self.asked[0]

    @cached_property
    def asked(self):
        """The command of ours that it is, if any, and its arguments."""
        if self.module == TRAIN:
            return "train", self.arguments
        return (
            split_known_command(self.arguments or ["ls"])
            if self.module == RUN
            else ("", self.arguments)
        )

    @property
    def trains(self):
        """Whether it trains heads, which others decode with."""
        return self.kind == "train"

    @cached_property
    def overrides(self):
        """Its arguments with flags as overrides, without the command's name."""
        kind, words = self.asked
        return flags_to_overrides(kind, words) if kind in FLAGS else words

    @property
    def settings(self):
        return dict(word.split("=", 1) for word in self.overrides if "=" in word)

    @property
    def pairs(self):
        return self.settings.get("pair", "").split(",")

    @property
    def recipe(self):
        """Such as ``rsd=exp1``."""
        known = find_recipes_by_folder().values()
        return next((word for word in self.arguments if word in known), None)

    @property
    def jobs(self):
        """How many the sweep has, as far as the command and its recipe say."""
        count = 1
        for name, value in ((sweeps(self.recipe) if self.recipe else {}) | self.settings).items():
            if name.split(".")[0] in ("pair", "task", "generation", "engine") and "[" not in value:
                count *= value.count(",") + 1
        return count

    def first_job(self):
        """The same, of each swept setting the first value alone."""
        words = []
        for word in self.arguments:
            name, equals, value = word.partition("=")
            several = equals and "," in value and not value.startswith(("[", "{"))
            words.append(f"{name}={value.split(',')[0]}" if several else word)
        program = self.words[: len(self.words) - len(self.arguments)]
        return Command(shlex.join([*program, *words]), self.places)


def appended(command):
    """The words that make a command small: few prompts, tokens and cells, on the CPU."""
    settings, recipe = command.settings, command.recipe
    words = ["engine.device=cpu"] if settings.get("engine") == "cuda" else []
    if command.trains:
        return [*words, "optimiser.steps=2", "optimiser.batch=4", "data.answers.max_new_tokens=4",
                "data.answers.batch_size=4"]  # fmt: skip
    swept = sweeps(recipe) if recipe else {}
    words += ["prompts=1", "warmup=0", f"{LENGTHS}={'4,8' if LENGTHS in swept else '4'}"]
    if "seed" in swept:
        words.append("seed=0")
    if settings.get("energy"):
        words.append("energy=none")
    if recipe and "confirm" in read_recipe(recipe):
        words += ["confirm.prompts=1", "confirm.best=1"]
    if "FOLDER" in settings.get("pair.heads.redrafter", ""):
        words.append(f"pair.heads.redrafter={TRAINED}")
    few = recipe and settings.get("plan") != "true"
    return [*words, *_few_cells(read_recipe(recipe))] if few else words


def _few_cells(recipe):
    """Of a recipe's trees the first of each kind."""
    for each in recipe.get("defaults", []):
        for group in ("length", "budget"):
            if isinstance(each, dict) and f"override /{group}" in each:
                return [f"{group}={each[f'override /{group}'][0]}"]
    kinds = {}
    for cell in recipe.get("cells", []):
        if isinstance(cell, str):
            kinds.setdefault(cell.partition(":")[0], cell)
        elif "grid" in cell:
            kinds.setdefault("grid", GRID % cell["grid"]["decoder"])
        else:
            return []  # settings of each cell's own: all are of different kinds
    return [f"cells=[{','.join(kinds.values())}]"] if kinds else []


@cache
def printed_blocks(pages=PAGES):
    """The commands of each block without a language."""
    blocks = []
    for page in pages:
        place = str(page.relative_to(ROOT))
        for kind, text in BLOCK.findall(page.read_text("utf-8")):
            lines = text.replace("\\\n", " ").splitlines() if not kind else []
            found = [shlex.split(line, comments=True) for line in lines if COMMAND.match(line)]
            blocks.append([Command(shlex.join(words), (place,)) for words in found])
    return [block for block in blocks if block]


def printed():
    for block in printed_blocks():
        yield from block


def made(command):
    """What ``make TARGET`` runs last, which is not run; any other command as it is."""
    if command.words[0] != "make":
        return command
    told = ["make", "--no-print-directory", "--dry-run", *command.words[1:]]
    lines = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = shlex.split(lines.strip().splitlines()[-1])
    return Command(shlex.join(["python", *words[1:]]), command.places)


@cache
def printed_commands():
    """All of them, each once; the cheaper first."""
    places = {}
    for place, text in (*of_the_report(), *_of_files(), *_of_refusals()):
        if _published(Command(text, ())) and place not in places.setdefault(text, []):
            places[text].append(place)
    commands = [Command(text, tuple(where)) for text, where in places.items()]
    return sorted(commands, key=lambda each: each.jobs)


def of_the_report():
    """What ``report list`` prints, and what stands under each table, with nothing measured."""
    nothing = MeasuredRows.read_below(Path("no such folder"))
    for name in list_paper_names():
        paper = load_paper(name)
        for line in format_progress_and_commands(paper, nothing).splitlines():
            if line.strip().startswith(BEGIN):
                yield f"list {name}", line.strip()
        for item in paper.tables:
            for command in build_table(item, nothing).commands:
                yield f"table {item.name}", command


def _of_files():
    """What READMEs show in their blocks, and configs in their comments."""
    yield from ((each.places[0], each.text) for each in printed() if each.text.startswith(BEGIN))
    for path in (path for pattern in COMMENTED for path in sorted(ROOT.glob(pattern))):
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"^#\s+(spec-bench .*)$", text, re.MULTILINE):
            yield str(path.relative_to(ROOT)), shlex.join(shlex.split(line, comments=True))


def _of_refusals():
    """What a job says whose pair's heads are still to be trained."""
    for pair in published_pairs():
        for kind, heads in pair.get("heads", {}).items():
            if name := get_training_name_of_heads(Path(heads)):
                yield "refusal", format_training_command(kind, f"pair={pair['name']}", name)


def _published(command):
    """Whether it decodes or trains with what lies on the hub."""
    if command.kind not in FLAGS or command.kind == "serve":
        return False
    pairs, settings = published_pairs(), command.settings
    ids = {pair[model] for pair in pairs for model in ("target", "draft")} - {None}
    if {pair["name"] for pair in pairs} & {*command.pairs}:
        return True
    models = {settings.get("pair.target"), settings.get("pair.draft")}
    return bool(ids & models) or settings.get("task.source.kind") == "hub"
