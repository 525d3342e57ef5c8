"""Plain flags for what a job is most often told, ``--target A``, and the overrides they mean.

Knows words and files only; imports neither Hydra nor torch. A word that is neither a flag nor a
``KEY=VALUE`` is answered with the one that was probably meant.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_bench.settings.arguments import Parser
from spec_bench.settings.configs import conf_dirs, experiments_dirs, find_configs, read_yaml
from spec_bench.settings.fields import suggest
from spec_bench.settings.words import quote_text
from spec_bench.system.errors import UsageError
from spec_bench.system.files import command_line


@dataclass(frozen=True)
class Flag:
    """One flag, as ``flags.yaml`` explains it."""

    override: str
    metavar: str
    about: str
    path: bool = False


_READ = read_yaml(Path(__file__).with_suffix(".yaml"))
_JOB = {name: Flag(**told) for name, told in _READ["job"].items()}
_TRAIN = {name: _JOB[name] for name in ("pair", "target", "device", "seed")}
_TRAIN |= {name: Flag(**told) for name, told in _READ["train"].items()}
# A server's model and draft are options of its own, and it has its own batches.
_SERVE = {k: v for k, v in _JOB.items() if k not in ("target", "draft", "decoders", "batch-size")}
COMMAND_WORDS: dict[str, str] = _READ["commands"]
FLAGS = {"run": _JOB, "recommend": _JOB, "fit_tree": _JOB, "serve": _SERVE, "train": _TRAIN}

# What there is, the least of a launcher's numbers, how a plan says them, and what it leaves out.
LAUNCHERS, LEAST, UNITS, USUAL = (_READ[each] for each in ("launchers", "least", "units", "usual"))

_INFO = ("--info", "-i")  # a topic may follow
_HYDRA = _READ["hydra"]
_LISTED = ("decoders", "metrics")  # commas of other values sweep over them
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_KINDS = ("decoder", "task", "pair", "experiment")  # of bare words that name a file of ``conf``
# Settings whose texts a model reads or writes.
_TEXTS = re.compile(
    r"\+*(task\.(stop|template|plain|system|instruction)|pair\.chat_t|data\.openings)"
)
TYPED = r"\\\g<0>"
_ESCAPE = re.compile(r"(\\?)\\([nt])([a-z]?)")


def flags_to_overrides(command: str, arguments: Sequence[str]) -> list[str]:
    """Returns a command's arguments with plain flags as Hydra's overrides. Raises ValueError: a
    word is neither a flag nor an override, or one is written as the other.
    """
    flags = FLAGS[command]
    parser = Parser(prog=f"spec-bench {command}", add_help=False, allow_abbrev=False)
    for name in flags:
        parser.add_argument(f"--{name}", dest=name, action="append" if name == "data" else "store")
    given, rest = parser.parse_known_args(list(arguments))
    asked = {name: value for name, value in vars(given).items() if value is not None}
    if "data" in asked:
        more = [each for each in rest if Path(each).is_file()]  # a shell's *.jsonl
        rest = [each for each in rest if each not in more]
        files = [quote_text(os.path.expanduser(each)) for each in [*asked["data"], *more]]
        asked["data"] = files[0] if len(files) == 1 else f"[{','.join(files)}]"
    own = _check_words(rest, flags, command) if command != "serve" else []  # which looks itself
    if "data" in asked and command != "train" and not _choices("task", asked, rest):
        asked = {"task": "jsonl"} | asked
    if (device := asked.get("device")) and not _DEVICE.fullmatch(device):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if not asked.get("decoders", "-").strip("[], "):
        raise UsageError("--decoders must name one, such as sd:3, got nothing")
    if command == "run" and _is_alone(asked, rest):
        asked["decoders"] = "prompt_lookup"
    found = [_override(flags[name], name, value) for name, value in asked.items()]
    # Hydra takes overrides in one piece; serve's first word is an engine.
    return [*rest, *found] if command == "serve" else [*own, *found, *rest[len(own) :]]


def _read_escape(match: re.Match[str]) -> str:
    if match[1]:
        return match[0][1:]
    if match[3]:
        raise UsageError(
            f"{match.string}: for a line break or a tab before {match[3]!r} write $'...' around "
            f"all of it, for the letters \\{match[0]}"
        )
    return "\n" if match[2] == "n" else "\t"


def read_escapes(
    words: Sequence[str], read: str | Callable[[re.Match[str]], str] = _read_escape
) -> list[str]:
    r"""Returns typed overrides; in texts for a model ``\n`` and ``\t`` become a newline and a tab,
    ``\\n`` and ``\\t`` the two letters, or what ``read`` says (``TYPED``: the reverse). Raises
    ValueError: a small letter follows, as in ``\nabla``, which may be meant either way.
    """
    return [_ESCAPE.sub(read, each) if _TEXTS.match(each) else each for each in words]


def _choices(group: str, asked: dict[str, str], rest: Sequence[str]) -> bool:
    return group in asked or any(each.startswith(f"{group}=") for each in rest)


def _is_alone(asked: dict[str, str], rest: Sequence[str]) -> bool:
    """Returns whether a target is named, and nothing that would say how to draft for it."""
    how = ("pair", "decoder", "cells", "experiment", *(path.name for path in papers()))
    told = {"pair", "draft", "decoders"} & {*asked} or any(each.startswith(how) for each in rest)
    return "target" in asked and not told


def papers() -> Iterator[Path]:
    """Yields the folders of recipes."""
    return (path for folder in experiments_dirs() for path in folder.iterdir() if path.is_dir())


def _override(flag: Flag, name: str, value: str) -> str:
    if flag.path:
        value = quote_text(os.path.expanduser(value))
    elif name in _LISTED:
        value = re.sub(r"\b([a-z_]\w*)\s+(?=\d)", r"\1:", value)  # sd 3
        listed = re.split(r"[,\s]+(?![\w.]+=)", value.strip("[]"))  # a decoder has its settings
        value = ",".join(quote_text(each) for each in listed if each)
    elif flag.metavar == "TEXT":
        value = quote_text(value)
    elif flag.metavar == "NAME":
        value = ",".join(map(quote_text, value.split(",")))
    elif name == "prompts" and value == "all":
        value = "null"
    return flag.override.format(value)


def _check_words(words: list[str], flags: dict[str, Flag], command: str) -> list[str]:
    """Returns Hydra's own flags first. Raises ValueError: a word is no override or flag."""
    own = list[str]()
    others = list[str]()
    left = [*words]
    settings = {"decoder", "tree", "spec", "cells", *settings_of_command(command)}
    while left:
        word = left.pop(0)
        key, equals, value = word.partition("=")
        (own if key in _HYDRA else others).append(word)
        if key in _HYDRA:
            choices = _HYDRA[key]
            if key in _INFO and re.match("-|$|.*=", "".join([equals, *left[:1]])):
                value = value or "all"  # else Hydra takes an override for its topic
                own[-1] = f"{key}={value}"
            elif choices is not None and not equals:
                own += left[:1]
                value = "".join(left[:1])
                del left[:1]
            if choices and value not in choices:
                choices = ", ".join(choices)
                raise UsageError(f"{key} must be one of {choices}, got {value or 'nothing'}")
        elif word.startswith("-"):
            name = key.lstrip("-").replace("_", "-")
            if (meant := _READ["instead"].get(name, name)) in flags:
                raise UsageError(f"{key} is --{meant}")
            if f"{name}s" in flags:
                given = value or " ".join(left[:1]) or "LIST"
                raise UsageError(f"there is no flag {key}; did you mean --{name}s {given}?")
            setting = key.lstrip("-").replace("-", "_")
            homes = [""] * (setting.partition(".")[0] in settings)
            for group in ("generation", "engine"):
                text = (conf_dirs()[0] / group / "default.yaml").read_text(encoding="utf-8")
                homes += [f"{group}."] * bool(re.search(rf"^{setting}:", text, re.MULTILINE))
            if homes:
                full = f"{homes[0]}{setting}={value or 'VALUE'}"
                raise UsageError(f"{key} is a setting, not a flag: {full}")
            near = suggest(name, [*flags], "--")
            more = f"spec-bench {command} --help lists them"
            raise UsageError(f"there is no flag {key}{near or f'; {more}'}")
        elif not equals and not word.startswith("~"):
            near = suggest_spelling(word) or "a setting is KEY=VALUE, a flag --NAME VALUE"
            raise UsageError(f"cannot read {word!r}: {near}")
        elif (name := key.replace("_", "-")) in flags and key not in settings:
            full = flags[name].override.format(value)
            swept = "-m " * ("," in value and name not in _LISTED)
            raise UsageError(
                f"there is no setting {key}: {swept}--{name} {value}, or {swept}{full}"
            )
    words[:] = [*own, *others]
    return own


def settings_of_command(command: str) -> Iterator[str]:
    """Yields what may stand before the first dot of a command's overrides."""
    for folder in (*conf_dirs(), *experiments_dirs()):
        yield from (path.name for path in folder.iterdir() if path.is_dir())
    file = conf_dirs()[0] / ("train.yaml" if command == "train" else "config.yaml")
    yield from re.findall(r"^(\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)


def suggest_spelling(word: str) -> str:
    """Returns how a bare word is written that names a choice or a file, or an empty text."""
    name, _, tree = word.partition(":")
    for kind in _KINDS:
        if name in find_configs(kind):
            if kind == "decoder":
                return f"it is a decoder: spec-bench run --decoders {name}{tree and f':{tree}'}"
            flag = f"{kind}=" if kind == "experiment" else f"--{kind} "
            return f"it is a{'n' * (kind[0] == 'e')} {kind}: spec-bench run {flag}{name}"
    for folder in experiments_dirs():
        if recipes := sorted(path.stem for path in folder.glob(f"{name}/*.yaml")):
            recipes = [each for each in recipes if each != "paper"]
            first = recipes[0] if recipes else "RECIPE"
            return f"it is a paper: spec-bench run {name}={first}, or spec-bench ls tables {name}"
    for ending, command in (("csv", "report"), ("gguf", "convert"), ("jsonl", "run --data")):
        if word.endswith(f".{ending}"):
            return f"it is a file: {command_line(*command.split(), word)}"
    return ""
