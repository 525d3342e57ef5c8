"""Flags for the most used settings of a job, such as ``--target A``, and their overrides.

Knows words and files only; imports neither Hydra nor torch. A word that is neither a flag nor a
``KEY=VALUE`` is refused with the flag or setting that was probably meant.
"""

import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from spec_bench.settings.arguments import COMMANDS, get_option_arguments, make_parser
from spec_bench.settings.configs import (
    find_configs,
    get_conf_dir,
    list_conf_dirs,
    list_experiments_dirs,
    read_yaml,
)
from spec_bench.settings.override_values import quote_if_needed
from spec_bench.system.errors import UsageError
from spec_bench.system.files import format_own_command
from spec_bench.system.redaction import redact


def _list_flags(command: str) -> dict[str, dict[str, Any]]:
    """Lists a command's flags that stand for overrides, by name."""
    return {
        name[2:]: option
        for name, option in get_option_arguments(command).items()
        if "means" in option
    }


FLAGS = {command: flags for command in COMMANDS if (flags := _list_flags(command))}
_LAUNCHER_TEXTS = read_yaml(Path(__file__).with_name("launchers.yaml"))
# Launchers, the minima of their numbers, the units in a plan, and values that a plan omits.
LAUNCHERS, MINIMA, UNITS, USUAL_VALUES = (
    _LAUNCHER_TEXTS[key] for key in ("launchers", "least", "units", "usual")
)

_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_LIST_FLAGS = ("decoders", "metrics")  # commas of other values sweep over them
# Words that people try first in place of a flag.
_FLAG_BY_GUESS = {
    "model": "target", "draft-model": "draft", "dataset": "data", "num-prompts": "prompts",
    "max-tokens": "max-new-tokens", "decoder": "decoders", "metric": "metrics",
}  # fmt: skip
# Config files with the settings of a job, and of a training.
RUN_FILES = (
    "config",
    "pair/shared/base",
    "generation/default",
    "engine/default",
    "energy/auto",
    "sink/default",
)
TRAIN_FILES = ("train", "engine/default")
_SETTING = re.compile(r"( *)(\w+):(?: ((?!#).*?))?(?:\s+# (.*))?")  # no value: a group
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_KINDS = ("decoder", "task", "pair", "experiment")  # of bare words that name a file of ``conf``
# Settings with texts that a model reads or writes.
_MODEL_TEXT = re.compile(
    r"\+*(task\.(stop|template|plain|system|instruction)|pair\.chat_t|data\.openings)"
)
TYPED_ESCAPE = r"\\\g<0>"
_ESCAPE = re.compile(r"(\\?)\\([nt])([a-z]?)")


def parse_job_arguments(command: str, arguments: Sequence[str]) -> Namespace:
    """Parses a command's options; ``words`` are its overrides, with those of its flags. Raises
    UsageError if a word is neither a flag nor an override, or if a flag is written as an override
    or the reverse.
    """
    flags = FLAGS[command]
    options, words = make_parser(command).parse_known_args([*arguments])
    values = vars(options)
    flag_values = {}
    for name in flags:
        if (value := values.pop(name.replace("-", "_"))) is not None:
            flag_values[name] = value
    if "=" in values.get("info", ""):  # an override in place of a topic
        words.append(values["info"])
        options.info = "all"
    if (topic := values.get("info")) and topic not in _TOPICS:
        raise UsageError(f"--info must be one of {', '.join(_TOPICS)}, got {topic}")
    if "data" in flag_values:
        more_files = [word for word in words if Path(word).is_file()]  # from a shell's *.jsonl
        words = [word for word in words if word not in more_files]
        files = [
            quote_if_needed(os.path.expanduser(file))
            for file in [*flag_values["data"], *more_files]
        ]
        flag_values["data"] = files[0] if len(files) == 1 else f"[{','.join(files)}]"
    for word in words:
        _require_known_override(word, command)
    if (
        "data" in flag_values
        and command != "train"
        and not _is_group_chosen("task", flag_values, words)
    ):
        flag_values = {"task": "jsonl"} | flag_values
    if (device := flag_values.get("device")) and not _DEVICE.fullmatch(device):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if not flag_values.get("decoders", "-").strip("[], "):
        raise UsageError("--decoders must name one, such as sd:3, got nothing")
    if command == "run" and _is_target_named_alone(flag_values, words):
        flag_values["decoders"] = "prompt_lookup"
    overrides = [_flag_to_override(flags[name], name, value) for name, value in flag_values.items()]
    options.words = [*overrides, *words]
    return options


def flags_to_overrides(command: str, arguments: Sequence[str]) -> list[str]:
    """Converts a command's arguments to overrides. Raises UsageError as ``parse_job_arguments``
    does.
    """
    words: list[str] = parse_job_arguments(command, arguments).words
    return words


def _unescape_match(match: re.Match[str]) -> str:
    if match[1]:
        return match[0][1:]
    if match[3]:
        raise UsageError(
            f"{match.string}: for a line break or a tab before {match[3]!r} write $'...' around "
            f"all of it, for the letters \\{match[0]}"
        )
    return "\n" if match[2] == "n" else "\t"


def replace_escapes_in_model_texts(
    words: Sequence[str], replacement: str | Callable[[re.Match[str]], str] = _unescape_match
) -> list[str]:
    r"""Replaces escapes in overrides that are texts for a model: ``\n`` and ``\t`` become a newline
    and a tab, ``\\n`` and ``\\t`` the two letters, or ``replacement`` (``TYPED_ESCAPE``: the
    reverse). Raises ValueError if a small letter follows, as in ``\nabla``, which may be meant
    either way.
    """
    return [_ESCAPE.sub(replacement, word) if _MODEL_TEXT.match(word) else word for word in words]


def _is_group_chosen(group: str, flag_values: dict[str, str], words: Sequence[str]) -> bool:
    return group in flag_values or any(word.startswith(f"{group}=") for word in words)


def _is_target_named_alone(flag_values: dict[str, str], words: Sequence[str]) -> bool:
    """Returns whether a target is named without a draft, decoder or recipe."""
    prefixes = (
        "pair",
        "decoder",
        "cells",
        "experiment",
        *(path.name for path in iter_paper_folders()),
    )
    names_draft = {"pair", "draft", "decoders"} & {*flag_values} or any(
        word.startswith(prefixes) for word in words
    )
    return "target" in flag_values and not names_draft


def iter_paper_folders() -> Iterator[Path]:
    """Yields the folders of papers, which hold their recipes."""
    return (
        path for folder in list_experiments_dirs() for path in folder.iterdir() if path.is_dir()
    )


def _flag_to_override(flag: dict[str, Any], name: str, value: str) -> str:
    if "path" in flag:
        value = quote_if_needed(os.path.expanduser(value))
    elif name in _LIST_FLAGS:
        value = re.sub(r"\b([a-z_]\w*)\s+(?=\d)", r"\1:", value)  # sd 3
        parts = re.split(r"[,\s]+(?![\w.]+=)", value.strip("[]"))  # a decoder keeps its settings
        value = ",".join(quote_if_needed(part) for part in parts if part)
    elif flag["metavar"] == "TEXT":
        value = quote_if_needed(value)
    elif flag["metavar"] == "NAME":
        value = ",".join(map(quote_if_needed, value.split(",")))
    elif name == "prompts" and value == "all":
        value = "null"
    return str(flag["means"]).format(value)


def _require_known_override(word: str, command: str) -> None:
    """Raises UsageError if a word is no override; the message suggests the setting or flag that was
    probably meant.
    """
    key, equals, value = word.partition("=")
    flags = FLAGS[command]
    settings = list_setting_names(command)
    tops = {setting.partition(".")[0] for setting in settings}
    name = key.strip("-").replace("_", "-").rpartition(".")[2]
    name = _FLAG_BY_GUESS.get(name, name)
    is_flag = word.startswith("-")
    if word.startswith("~") or (
        equals and not is_flag and ("." in key or name not in flags or key in tops)
    ):
        return
    if not equals and not is_flag:
        hint = explain_bare_word(word) or "a setting is KEY=VALUE, a flag --NAME VALUE"
        raise UsageError(f"cannot read {word!r}: {hint}")
    # Spelling of each setting and flag, by the last part of its name.
    spellings = {
        setting.rpartition(".")[2].replace("_", "-"): f"{setting}=" for setting in settings
    }
    spellings |= {flag: f"--{flag} " for flag in flags}
    matches = [name] if name in spellings else get_close_matches(name, spellings, 1)
    suggestions = [f"; did you mean {spellings[name]}{value or 'VALUE'}?" for name in matches]
    ending_text = "".join(suggestions) or f"; spec-bench {command} --help lists them"
    raise UsageError(redact(f"there is no {'flag' if is_flag else 'setting'} {key}{ending_text}"))


@cache
def list_setting_names(command: str) -> list[str]:
    """Lists the names of a command's settings, and of the groups of configs."""
    trains = command == "train"
    files = TRAIN_FILES if trains else RUN_FILES
    names = [text.partition("=")[0] for text, _ in iter_assignments_with_comments(*files)]
    folders = (
        path for top in (*list_conf_dirs(), *list_experiments_dirs()) for path in top.iterdir()
    )
    return [*names, *(folder.name for folder in folders if folder.is_dir()), "spec"]


def iter_assignments_with_comments(*names: str) -> Iterator[tuple[str, str]]:
    """Yields (``key=value``, comment) of each setting in files of ``conf``; keys in a group's file
    begin with the group's name.
    """
    for name in names:
        path = [name.partition("/")[0]] if "/" in name else []
        depth = len(path)
        group, _, stem = name.rpartition("/")
        file = find_configs(group)[stem] if group else get_conf_dir() / f"{stem}.yaml"
        lines = file.read_text("utf-8").splitlines()
        for match in filter(None, map(_SETTING.fullmatch, lines)):
            path[depth + len(match[1]) // 2 :] = [match[2]]
            if match[3] and path[0] != "hydra":
                setting = f"{'.'.join(path)}={match[3]}"
                yield re.sub("(?<=[:,]) ", "", setting), match[4] or ""


def explain_bare_word(word: str) -> str:
    """Explains how to write a bare word that names a choice or a file; "" for any other word."""
    name, _, tree = word.partition(":")
    for kind in _KINDS:
        if name in find_configs(kind):
            if kind == "decoder":
                return f"it is a decoder: spec-bench run --decoders {name}{tree and f':{tree}'}"
            flag = f"{kind}=" if kind == "experiment" else f"--{kind} "
            return f"it is a{'n' * (kind[0] == 'e')} {kind}: spec-bench run {flag}{name}"
    for folder in list_experiments_dirs():
        if recipes := sorted(path.stem for path in folder.glob(f"{name}/*.yaml")):
            recipes = [recipe for recipe in recipes if recipe != "paper"]
            recipe = recipes[0] if recipes else "RECIPE"
            return f"it is a paper: spec-bench run {name}={recipe}, or spec-bench ls tables {name}"
    for suffix, command in (("csv", "report"), ("gguf", "convert"), ("jsonl", "run --data")):
        if word.endswith(f".{suffix}"):
            return f"it is a file: {format_own_command(*command.split(), word)}"
    return ""
