"""``ls``: lists of the available choices, a line for each.

The choices are read from the comments of the config files, ours and those of other packages. Knows
files only; imports neither Hydra nor torch.
"""

import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spec_bench.jobs.config.flags import (
    LAUNCHERS,
    RUN_FILES,
    TRAIN_FILES,
    iter_assignments_with_comments,
)
from spec_bench.settings.arguments import make_parser
from spec_bench.settings.configs import find_configs, list_experiments_dirs
from spec_bench.settings.fields import format_suggestion, list_setting_fields
from spec_bench.system import model_cache

_PAPER = "paper.yaml"


def print_listing(options: Namespace) -> int:
    """Prints a list (``spec-bench ls KIND``) or one entry of it; returns 2 if there is no such
    entry.
    """
    arguments = options.words
    if not arguments:
        kinds = "\n".join(f"  {kind:<12} {about}" for kind, (about, *_) in _LISTS.items())
        print(f"{make_parser('ls').format_help()}\n{kinds}")
        return 0
    kind, *names = arguments
    kind = next((k for k in (kind, f"{kind}s", f"{kind[:-1]}ies") if k in _LISTS), f"{kind}s")
    _, make, *make_arguments = _LISTS.get(kind, ("", tuple))
    lines = [*make(*make_arguments)]
    prefixes = tuple(f"{name}{end}" for name in names for end in ".=") or ""  # or all below a name
    chosen_lines = [line for line in lines if f"{line[0]}.".startswith(prefixes)]
    if kind not in _LISTS or not chosen_lines or len(names) > 1:
        entry_names = [line[0].partition("=")[0] for line in lines] or [*_LISTS]
        kind, word = (f"ls {kind}", " ".join(names)) if lines else ("ls", " ".join(arguments))
        message = (
            f"spec-bench {kind} takes one of {', '.join(dict.fromkeys(entry_names))}, got {word!r}"
        )
        print(f"{message}{format_suggestion(word, entry_names)}", file=sys.stderr)
        return 2
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for line in chosen_lines:
        table.add_row(*map(Text, line))
    Console(width=max(60, get_terminal_size((100, 24)).columns)).print(table)
    return 0


def _list_group_choices(group: str) -> Iterator[tuple[str, ...]]:
    for name, file in find_configs(group).items():
        keys = " ".join(
            k for k, _ in iter_assignments_with_comments(f"{group}/{name}") if not k.endswith(name)
        )
        yield (
            (name, keys, _read_first_comment_sentence(file))
            if group == "head"
            else (name, _read_first_comment_sentence(file))
        )


def _list_registered(module: str, name: str) -> Iterator[tuple[str, ...]]:
    for key, kind in getattr(import_module(f"spec_bench.{module}"), name).items():
        doc = _join_first_sentence((kind.__doc__ or "").replace("``", "").split())
        yield key, " ".join(map(_format_key_and_default, list_setting_fields(kind))), doc


def _list_metric_definitions() -> Iterator[tuple[str, ...]]:
    """Yields (name, definition) of each metric."""
    quality = import_module("spec_bench.metrics.quality")
    for name in (*quality.SCORES, *quality.metric):
        yield name, quality.get_or_register_column(name, {}).definition
    for name, module in quality.SHIPPED.items():
        yield name, _join_first_sentence(module.compute.__doc__.split())


def _list_fetched_or_converted_models() -> Iterator[tuple[str, ...]]:
    if not (folders := model_cache.list_cached_models()):
        yield "none yet", "--target FILE.gguf, make smollm2 and make qwen_coder leave one"
    for folder in folders:
        size = model_cache.count_folder_bytes(folder) / 2**30
        yield (
            model_cache.get_name_under_fetched_models(folder),
            f"{size:.1f} GiB",
            model_cache.describe_original_weights(folder),
        )


def _format_key_and_default(field: Field[Any]) -> str:
    """Formats ``key=default``, or the key alone if it has no default."""
    has_default = field.default is not MISSING
    return f"{field.name}={json.dumps(field.default)}" if has_default else field.name


def _list_paper_recipes() -> Iterator[tuple[str, ...]]:
    """Yields (``PAPER=RECIPE``, first sentence) of each paper's recipes."""
    paths = [file for top in list_experiments_dirs() for file in sorted(top.glob("*/*.yaml"))]
    recipes = (file for file in paths if file.name != _PAPER)
    return (
        (f"{file.parent.name}={file.stem}", _read_first_comment_sentence(file)) for file in recipes
    )


# Lists: name -> (purpose, function that makes the lines, its arguments).
_LISTS: dict[str, tuple[Any, ...]] = {
    "decoders": ("for --decoders NAME:TREE, or decoder=NAME", _list_group_choices, "decoder"),
    "drafters": ("drafter.kind in a decoder's YAML", _list_registered, "draft.base", "drafter"),
    "policies": ("tree.policy in a decoder's YAML", _list_registered, "tree.base", "policy"),
    "rules": ("verifier.rule in a decoder's YAML", _list_registered, "verify.base", "rule"),
    "tasks": ("for --task NAME", _list_group_choices, "task"),
    "metrics": ("scores, for --metrics NAME,NAME, and what is always counted",
                _list_metric_definitions),
    "pairs": ("for --pair NAME", _list_group_choices, "pair"),
    "models": ("fetched or converted on this machine; spec-bench convert --remove NAME",
               _list_fetched_or_converted_models),
    "recipes": ("a paper's experiments: spec-bench run rsd=exp1", _list_paper_recipes),
    "experiments": ("for experiment=NAME", _list_group_choices, "experiment"),
    "tables": ("papers' tables and figures: measured, missing, commands", tuple),
    "heads": ("for spec-bench train head=NAME", _list_group_choices, "head"),
    "trainings": ("for spec-bench train training=NAME", _list_group_choices, "training"),
    "engines": ("for engine=NAME", _list_group_choices, "engine"),
    "energy": ("for energy=NAME", _list_group_choices, "energy"),
    "sinks": ("for sink=NAME", _list_group_choices, "sink"),
    "launchers": ("for -m hydra/launcher=NAME: where jobs run", LAUNCHERS.items),
    "settings": ("KEY=VALUE of a job, with their values unless set",
                 iter_assignments_with_comments, *RUN_FILES),
    "train": ("KEY=VALUE of a training", iter_assignments_with_comments, *TRAIN_FILES),
}  # fmt: skip


def _read_first_comment_sentence(file: Path) -> str:
    """Returns the first sentence of a file's comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("#") or (comment and line.startswith("#   ")):  # a command
            break
        if not line.startswith("# @"):
            comment.append(line.removeprefix("#").strip())
    return _join_first_sentence(comment)


def _join_first_sentence(words: Iterable[str]) -> str:
    """Joins lines and returns their first sentence; it ends before a capital letter, but not after
    "et al." or the like.
    """
    return re.split(r"(?<!\bal)\.\s(?=[A-Z`])", " ".join(words))[0].rstrip(".:")
