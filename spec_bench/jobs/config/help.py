"""``--help`` and ``ls``: commands, and the choices with a line for each.

The choices are read from the comments of the config files, ours and those of other packages. Knows
files only; imports neither Hydra nor torch.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spec_bench.jobs.config.flags import FLAGS, LAUNCHERS
from spec_bench.settings.configs import conf_dir, experiments_dirs, find_configs, read_yaml
from spec_bench.settings.fields import list_setting_fields, suggest
from spec_bench.system import model_cache

_PAPER = "paper.yaml"
_SETTING = re.compile(r"( *)(\w+):(?: ((?!#).*?))?(?:\s+# (.*))?")  # without a value: a group
_HELP: dict[str, dict[str, str]] = read_yaml(Path(__file__).with_suffix(".yaml"))
COMMANDS = {name: told["about"] for name, told in _HELP.items()}
_OVERVIEW = """\
Which speculative decoder is fastest for your models, by how much? Lossless?

usage: spec-bench COMMAND ...          spec-bench COMMAND --help

{}

  spec-bench run --task xsum --decoders sd:3,rsd_s:4x3 --prompts 5
"""


def overview() -> str:
    """Returns what ``spec-bench`` prints without a command."""
    lines = (f"  {name:<11} {about}" for name, about in COMMANDS.items())
    return _OVERVIEW.format("\n".join(lines))


def command_help(command: str) -> str:
    """Returns a command's help."""
    if command == "ls":
        kinds = "\n".join(f"  {kind:<12} {about}" for kind, (about, *_) in _LISTS.items())
        start = (
            "usage: spec-bench ls KIND [NAME]\n\nLists what there is to choose from, ours and other"
        )
        return f"{start} packages'.\n\n{kinds}\n\n  spec-bench ls decoders\n"
    flags = "\n".join(
        f"  {f'--{name} {flag.metavar}':<20} {flag.about}"
        for name, flag in FLAGS.get(command, {}).items()
    )
    return _HELP[command]["help"].format(flags=flags)


def print_listing(arguments: Sequence[str]) -> int:
    """Prints a list (``spec-bench ls KIND``), or one entry; returns 2 where there is none."""
    if not arguments:
        print(command_help("ls"), end="")
        return 0
    kind, *names = arguments
    kind = next((k for k in (kind, f"{kind}s", f"{kind[:-1]}ies") if k in _LISTS), f"{kind}s")
    _, make, *of = _LISTS.get(kind, ("", tuple))
    lines = [*make(*of)]
    named = tuple(f"{name}{end}" for name in names for end in ".=") or ""  # or all below a name
    shown = [line for line in lines if f"{line[0]}.".startswith(named)]
    if kind not in _LISTS or not shown or len(names) > 1:
        known = [line[0].partition("=")[0] for line in lines] or [*_LISTS]
        kind, got = (f"ls {kind}", " ".join(names)) if lines else ("ls", " ".join(arguments))
        told = f"spec-bench {kind} takes one of {', '.join(dict.fromkeys(known))}, got {got!r}"
        print(f"{told}{suggest(got, known)}", file=sys.stderr)
        return 2
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for line in shown:
        table.add_row(*map(Text, line))
    Console(width=max(60, get_terminal_size((100, 24)).columns)).print(table)
    return 0


def _choices(group: str) -> Iterator[tuple[str, ...]]:
    for name, file in find_configs(group).items():
        keys = " ".join(key for key, _ in _read_comments(file, "head.") if not key.endswith(name))
        yield (name, keys, _about(file)) if group == "head" else (name, _about(file))


def _list_registered(module: str, name: str) -> Iterator[tuple[str, ...]]:
    for each, kind in getattr(import_module(f"spec_bench.{module}"), name).items():
        doc = _sentence((kind.__doc__ or "").replace("``", "").split())
        yield each, " ".join(map(_key, list_setting_fields(kind))), doc


def _metrics() -> Iterator[tuple[str, ...]]:
    quality = import_module("spec_bench.metrics.quality")
    for name in (*quality.SCORES, *quality.metric):
        yield name, quality.get_column(name, {}).definition
    for name, module in quality.SHIPPED.items():
        yield name, _sentence(module.compute.__doc__.split())


def _models() -> Iterator[tuple[str, ...]]:
    if not (folders := model_cache.list_cached_models()):
        yield "none yet", "--target FILE.gguf, make smollm2 and make qwen_coder leave one"
    for folder in folders:
        size = model_cache.size_bytes(folder) / 2**30
        yield (
            model_cache.get_cached_name(folder),
            f"{size:.1f} GiB",
            model_cache.read_weights(folder),
        )


def _key(field: Field[Any]) -> str:
    """Returns ``key=default``, or the key alone where it must be given."""
    known = field.default is not MISSING
    return f"{field.name}={json.dumps(field.default)}" if known else field.name


def _recipes() -> Iterator[tuple[str, ...]]:
    found = [file for top in experiments_dirs() for file in sorted(top.glob("*/*.yaml"))]
    recipes = (file for file in found if file.name != _PAPER)
    return ((f"{file.parent.name}={file.stem}", _about(file)) for file in recipes)


def _settings(config: str, *groups: str) -> Iterator[tuple[str, ...]]:
    yield from _read_comments(conf_dir() / f"{config}.yaml", "")
    for group in groups:
        yield from _read_comments(conf_dir() / f"{group}.yaml", f"{group.partition('/')[0]}.")


# Of each list what it is for, and what makes its lines of what.
_LISTS: dict[str, tuple[Any, ...]] = {
    "decoders": ("for --decoders NAME:TREE, or decoder=NAME", _choices, "decoder"),
    "drafters": ("drafter.kind in a decoder's YAML", _list_registered, "draft.base", "drafter"),
    "policies": ("tree.policy in a decoder's YAML", _list_registered, "tree.base", "policy"),
    "rules": ("verifier.rule in a decoder's YAML", _list_registered, "verify.base", "rule"),
    "tasks": ("for --task NAME", _choices, "task"),
    "metrics": ("scores, for --metrics NAME,NAME, and what is always counted", _metrics),
    "pairs": ("for --pair NAME", _choices, "pair"),
    "models": ("fetched or converted on this machine; spec-bench convert --remove NAME", _models),
    "recipes": ("a paper's experiments: spec-bench run rsd=exp1", _recipes),
    "experiments": ("for experiment=NAME", _choices, "experiment"),
    "tables": ("papers' tables and figures: measured, missing, commands", tuple),
    "heads": ("for spec-bench train head=NAME", _choices, "head"),
    "trainings": ("for spec-bench train training=NAME", _choices, "training"),
    "engines": ("for engine=NAME", _choices, "engine"),
    "energy": ("for energy=NAME", _choices, "energy"),
    "sinks": ("for sink=NAME", _choices, "sink"),
    "launchers": ("for -m hydra/launcher=NAME: where jobs run", LAUNCHERS.items),
    "settings": ("KEY=VALUE of a job, with their values unless set",
                 _settings, "config", "pair/shared/base",
                 "generation/default", "engine/default", "energy/auto", "sink/default"),
    "train": ("KEY=VALUE of a training", _settings, "train", "engine/default"),
}  # fmt: skip


def _read_comments(file: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the settings that a file has, those of a group behind its name."""
    path: list[str] = []
    for match in filter(None, map(_SETTING.fullmatch, file.read_text("utf-8").splitlines())):
        path[len(match[1]) // 2 :] = [match[2]]
        if match[3] and path[0] != "hydra":
            found = f"{prefix}{'.'.join(path)}={match[3]}"
            yield re.sub("(?<=[:,]) ", "", found), match[4] or ""


def _about(file: Path) -> str:
    """Returns the first sentence of a file's comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("#") or (comment and line.startswith("#   ")):  # a command
            break
        if not line.startswith("# @"):
            comment.append(line.removeprefix("#").strip())
    return _sentence(comment)


def _sentence(words: Iterable[str]) -> str:
    """Returns the first; it ends before a capital letter, but not after "et al." or the like."""
    return re.split(r"(?<!\bal)\.\s(?=[A-Z`])", " ".join(words))[0].rstrip(".:")
