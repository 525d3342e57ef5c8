"""``--help`` and ``ls``: commands, and the choices with a line for each.

The choices are read from the comments of the config files, ours and those of other packages. Knows
files only; imports neither Hydra nor torch.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import get_terminal_size

from spec_bench.jobs.config.flags import FLAGS
from spec_bench.settings.configs import conf_dir, conf_dirs, experiments_dirs
from spec_bench.settings.fields import did_you_mean

_PAPER = "paper.yaml"
_SETTING = re.compile(r"(\w+): (.*?)(?:\s+# (.*))?")
COMMANDS = {
    "run": "decode a task's prompts with decoders in turn, and measure them",
    "recommend": "find the fastest decoder for your models and prompts",
    "report": "tables, figures and pages of what was measured",
    "table": "a paper's table with your numbers beside it",
    "figure": "a paper's figure from your rows",
    "checks": "a paper's claims, checked on your rows",
    "page": "one HTML page of an experiment",
    "compare": "what changed between two folders of results",
    "watch": "how far a sweep is",
    "audit": "prove that decoders are lossless",
    "train": "train draft heads or a draft model",
    "serve": "start vLLM, SGLang or llama.cpp and measure it",
    "convert": "make a model folder of a GGUF file",
    "fit_tree": "measure acceptances, for sequoia's trees",
    "answers": "write Spec-Bench's answer files",
    "spider": "check Spider's databases",
    "ls": "list decoders, tasks, pairs, recipes and more",
    "version": "print the versions of spec-bench and its packages",
}
_OVERVIEW = """\
spec-bench: which speculative decoder is fastest for your models, by how much, is it lossless?

usage: spec-bench COMMAND ...          spec-bench COMMAND --help

{}

  spec-bench run --task xsum --decoders sd:3,rsd_s:4x3 --prompts 5
"""
_MORE = """\
  KEY=VALUE            any setting: spec-bench ls settings; -m sweeps over KEY=A,B
  plan=true            list the cells, their hours and memory; decode nothing
"""
_HELP = {
    "run": """\
usage: spec-bench run [--FLAG VALUE ...] [-m] [KEY=VALUE ...]

Decodes a task's prompts with each decoder and with plain decoding, in turn, and adds a row for each
to results/NAME/results.csv. The same command resumes what was stopped.

{flags}
  spec-bench run --target lmsys/vicuna-7b-v1.3 --draft double7/vicuna-68m --device cuda
""",
    "recommend": """\
usage: spec-bench recommend [--FLAG VALUE ...] [KEY=VALUE ...]

Runs every candidate on three prompts, the fastest five on ten, and measures the fastest three in
turn with plain decoding on fresh prompts. The answer follows from the fresh prompts alone. A target
alone is enough. Without --decoders the candidates are those of conf/experiment/recommend.yaml.

{flags}  confirm.prompts=30   fresh prompts that the best are measured on
  confirm.best=3       how many are measured on them

  spec-bench recommend --target FOLDER --decoders prompt_lookup,suffix_lookup
""",
    "report": """\
usage: spec-bench report THING ...

  all [NAME ...]       every page, table and figure that has rows, and index.html
  FILE.csv             a results file's table and figure, and its answer
  sweep NAME           a page to explore any experiment
  lengths NAME         acceptance lengths as vLLM, SGLang and SPEED-Bench count them
  positions NAME       tokens per call by where in the text a call is
  throughput NAME      tokens/s of one request and of all, by requests together
  records [NAME ...]   what the records beside each table hold; --seal gives old ones a digest
  answers FILE ...     answer files of Spec-Bench, EAGLE or Medusa as rows of an experiment
  wandb                a W&B report of a project; --dry-run FILE needs no account
  list, table, figure, checks, page: as spec-bench ls tables, table, figure, checks, page
  --results FOLDER     default: results

  spec-bench report lengths quickstart --results outputs
""",
    "table": """\
usage: spec-bench table PAPER/NUMBER [--pair NAME] [--format FORMAT] [--output FILE]

Prints a paper's table: the paper's number, yours with its interval, and the command for each cell
that is missing. Your rows are those below results/.

  --pair NAME          rows of this pair; default: the paper's own
  --format FORMAT      markdown, csv, html or latex
  --results FOLDER     default: results

  spec-bench table rsd/7 --pair embedded
""",
    "figure": """\
usage: spec-bench figure PAPER/NUMBER [--pair NAME] [--output FOLDER]

Draws a paper's figure from your rows, as PNG and PDF in results/figures.

  --pair NAME          rows of this pair; default: the paper's own
  --results FOLDER     default: results

  spec-bench figure rsd/4 --pair embedded
""",
    "checks": """\
usage: spec-bench checks PAPER [--results FOLDER]

Prints what a paper claims, and for each claim whether your rows show it, contradict it, or cannot
decide it.

  spec-bench checks rsd
""",
    "page": """\
usage: spec-bench page NAME [--pair NAME] [--output FILE]

Writes page.html beside an experiment's results.csv: its answer, tables, figures and checks in one
file that needs no network.

  --results FOLDER     default: results

  spec-bench page rsd-exp1
""",
    "audit": """\
usage: spec-bench audit [--only PATTERN] [--target MODEL --draft MODEL --prompts FILE]

Proves losslessness: every verification rule by enumeration, and every tree on a Markov chain with
each drafter and rule that fits it. An hour on one core; --only takes parts of it.

  --only PATTERN       parts by name, such as 'rule: *' or '*k_seq*'
  --target, --draft    models whose greedy answers must equal plain decoding's
  --prompts FILE       their prompts, one on each line
  --max-new-tokens N   of an answer
  --samples N          continuations for each chi-square
  --seed N             of the random numbers
  --server URL         a running server instead: is it the target's distribution?
  --served-model NAME  the target's name there
  --temperature T      of the server's sampled answers
  --answers N          sampled answers for each prompt

  spec-bench audit --only 'rule: *'
""",
    "train": """\
usage: spec-bench train [--FLAG VALUE ...] [-m] [KEY=VALUE ...]

Trains draft heads, or a draft, on a target that stays as it is, and writes them to
results/train/NAME/heads. The same command goes on from the last checkpoint.

{flags}  head=KIND            what is trained: spec-bench ls heads
  data.kind=KIND       chats, prompts, task (then task=NAME) or sampled
  KEY=VALUE            any setting: spec-bench ls train; -m sweeps over KEY=A,B

  spec-bench train --pair vicuna_7b --data sharegpt.json --device cuda head=redrafter
""",
    "fit_tree": """\
usage: spec-bench fit_tree [width=8] [nodes=14,30] [--FLAG VALUE ...] [KEY=VALUE ...]

Counts which of the draft's best children the target accepts and writes the shares to results/trees,
where sequoia finds them: sequoia:@14 is then the best tree of 14 nodes.

  width=8              ranks that are looked at
  nodes=6,10,14,30     sizes whose expected block efficiency is printed
  pair=A,B task=A,B    what is fitted, one after the other
  prompts=20           the task's last ones, so that a job's first stay unseen

  spec-bench fit_tree task=xsum,dolly nodes=14
""",
    "compare": """\
usage: spec-bench compare BEFORE AFTER [--alpha 0.05] [--margin 0.03] [--output FOLDER]

Says what changed between two folders of results and exits with 1 if something became worse. Measure
the second time with another --out FOLDER; the same folder would find its cells complete.

  --alpha SHARE        chance of a false alarm over all comparisons
  --margin SHARE       changes smaller than this are no change
  --output FOLDER      also writes compare.md and compare.html

  spec-bench compare monday tuesday
""",
    "watch": """\
usage: spec-bench watch NAME [--results FOLDER] [--once]

Shows how far the sweep of that name is, from any machine that sees its folder: a line for each job,
what failed and why, the end in sight. Status 2 if a job has failed.

  --results FOLDER     default: results
  --once               prints it once, for scripts

  spec-bench watch rsd-exp1 --once
""",
    "serve": """\
usage: spec-bench serve ENGINE [--with ngram,draft_model] [--FLAG VALUE ...] [KEY=VALUE ...]

Starts servers of an engine (llama_cpp, vllm, sglang), plain and speculating, has a job ask them in
turn, and ends them, however this command ends. The same command goes on.

  --with METHODS       ways of speculation; none: the plain server alone
  --program PATH       the engine's command, if it is not on the PATH
  --model FILE --draft FILE     what it loads; default: the pair's
  --arguments='-t 8'   more of the engine's own
  --requests 4 --context 4096   requests under way together; their tokens, at most
  --gpus 1             of each server, where this machine has any
  --patience 1200 --logs FOLDER seconds until a server must answer; its output
  --pair, --task, --data, --prompts, --temperature, ... as for run

  spec-bench serve vllm --with ngram --pair llama31_8b_1b --task xsum --prompts 20
""",
    "convert": """\
usage: spec-bench convert FILE.gguf

Makes a model folder of float32 weights of a GGUF file, once; then --target FILE.gguf takes it.

  spec-bench convert model-q4.gguf
""",
    "answers": """\
usage: spec-bench answers results/NAME/results.csv [--output FOLDER]

Writes the answers of a finished experiment as Spec-Bench's answer files, one for each decoder.

  --output FOLDER      default: answers beside the table

  spec-bench answers results/quickstart/results.csv
""",
    "spider": """\
usage: spec-bench spider FOLDER [--rows FILE] [--expect DIGEST] [--archive spider_data.zip]

Opens and digests Spider's databases, FOLDER/DB/DB.sqlite, and compares them with their digest.

  --rows FILE          JSON or JSONL rows: only the databases that they ask
  --expect DIGEST      digest that the databases should have
  --archive FILE       spider_data.zip, to compare with its digest

  spec-bench spider spider/database
""",
    "version": """\
usage: spec-bench version

Prints the versions of spec-bench, Python and the packages that change numbers.

  spec-bench version
""",
}


def overview() -> str:
    """Returns what ``spec-bench`` prints without a command."""
    lines = (f"  {name:<11} {about}" for name, about in COMMANDS.items())
    return _OVERVIEW.format("\n".join(lines))


def command_help(command: str) -> str:
    """Returns a command's help."""
    if command == "ls":
        kinds = "\n".join(f"  {kind:<12} {about}" for kind, (about, _) in _LISTS.items())
        start = "usage: spec-bench ls KIND\n\nLists what there is to choose from, ours and other"
        return f"{start} packages'.\n\n{kinds}\n\n  spec-bench ls decoders\n"
    flags = "".join(
        f"  {f'--{name} {flag.metavar}':<20} {flag.about}\n"
        for name, flag in FLAGS.get(command, {}).items()
    )
    return _HELP[command].format(flags=flags + _MORE * (command in ("run", "recommend")))


def listing(arguments: Sequence[str]) -> int:
    """``spec-bench ls KIND``: prints a list; 2 and one line where there is no such kind."""
    kind = next(iter(arguments), "")
    kind = kind if kind in _LISTS else f"{kind}s"
    if kind not in _LISTS or len(arguments) != 1:
        got = " ".join(arguments)
        near = did_you_mean(kind, [*_LISTS])
        told = f"spec-bench ls takes one of {', '.join(_LISTS)}, got {got!r}{near}"
        print(told, file=sys.stderr)
        return 2
    wide = max(60, get_terminal_size((100, 24)).columns - 2)
    for name, about in _LISTS[kind][1]():
        start = f"{name:<26} "
        print(textwrap.fill(f"{start}{about}", wide, subsequent_indent=" " * 27))
    return 0


def _choices(group: str) -> Callable[[], Iterator[tuple[str, str]]]:
    def listed() -> Iterator[tuple[str, str]]:
        files = (file for top in conf_dirs() for file in sorted(top.glob(f"{group}/*.yaml")))
        return ((file.stem, _about(file)) for file in files)

    return listed


def _recipes() -> Iterator[tuple[str, str]]:
    found = [file for top in experiments_dirs() for file in sorted(top.glob("*/*.yaml"))]
    recipes = (file for file in found if file.name != _PAPER)
    return ((f"{file.parent.name}={file.stem}", _about(file)) for file in recipes)


def _settings(config: str, *groups: str) -> Callable[[], Iterator[tuple[str, str]]]:
    def listed() -> Iterator[tuple[str, str]]:
        yield from _of_file(conf_dir() / f"{config}.yaml", "")
        for group in groups:
            yield from _of_file(conf_dir() / group / "default.yaml", f"{group}.")

    return listed


_LISTS: dict[str, tuple[str, Callable[[], Iterator[tuple[str, str]]]]] = {
    "decoders": ("for --decoders NAME:TREE, or decoder=NAME", _choices("decoder")),
    "tasks": ("for --task NAME", _choices("task")),
    "pairs": ("for --pair NAME", _choices("pair")),
    "recipes": ("a paper's experiments: spec-bench run rsd=exp1", _recipes),
    "experiments": ("for experiment=NAME", _choices("experiment")),
    "tables": ("papers' tables and figures: measured, missing, commands", lambda: iter(())),
    "heads": ("for spec-bench train head=NAME", _choices("head")),
    "trainings": ("for spec-bench train training=NAME", _choices("training")),
    "engines": ("for engine=NAME", _choices("engine")),
    "energy": ("for energy=NAME", _choices("energy")),
    "sinks": ("for sink=NAME", _choices("sink")),
    "launchers": ("for -m hydra/launcher=NAME: where jobs run", _choices("hydra/launcher")),
    "settings": ("KEY=VALUE of a job, with their values unless set",
                 _settings("config", "generation", "engine")),
    "train": ("KEY=VALUE of a training", _settings("train", "engine")),
}  # fmt: skip


def _of_file(file: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the settings that a file has itself, not those nested below another."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if (match := _SETTING.fullmatch(line)) and match[1] != "defaults":
            if match[2].startswith("#"):  # a group of settings, with its comment
                continue
            yield f"{prefix}{match[1]}={match[2]}".replace(": ", ":"), match[3] or ""


def _about(file: Path) -> str:
    """Returns the first sentence of a file's comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            comment.append(line.removeprefix("#").strip())
    # A sentence ends before a capital letter, but not after "et al." or the like.
    return re.split(r"(?<!\bal)\.\s(?=[A-Z`])", " ".join(comment))[0].rstrip(".")
