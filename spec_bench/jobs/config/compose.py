"""Hydra around our configs: where it finds them, and its errors in one line of our words.

``rsd=exp1`` is ``experiments/rsd/exp1.yaml``. Another package registers an entry point,

    [project.entry-points."spec_bench.configs"]
    mine = "my_package"

and lays its folder out like ours: ``my_package/conf/decoder/coin.yaml`` is then ``decoder=coin``
(and ``cells=[coin:4x3]``), ``conf/task`` and ``conf/pair`` likewise, and
``my_package/experiments/mypaper/exp1.yaml`` is ``mypaper=exp1``. If two files have the same name,
ours is taken.
"""

import logging
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from traceback import walk_tb
from typing import Any
from weakref import WeakKeyDictionary

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException

from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.jobs.config.config import RunSettings, check_settings
from spec_bench.jobs.config.flags import LAUNCHERS
from spec_bench.jobs.config.model_files import EMBEDDED
from spec_bench.jobs.config.pair import drop_borrowed_name
from spec_bench.settings.configs import (
    conf_dir,
    conf_dirs,
    experiments_dir,
    experiments_dirs,
    find_configs,
)
from spec_bench.settings.fields import print_error, suggest, unknown_setting
from spec_bench.settings.foreign import MOST_RESOLVED, check_config
from spec_bench.settings.validation import takes_text
from spec_bench.settings.words import quote_text
from spec_bench.system import files, signals
from spec_bench.system.errors import UsageError, report_fault
from spec_bench.system.redaction import RedactedRecord, redact, redact_values
from spec_bench.vocabulary.published import FILE, find_published_tree, read_published, spellings

FULL_ERROR = "HYDRA_FULL_ERROR"
_wants_trace = os.environ.get(FULL_ERROR) == "1"
_SINGLE = (
    "pair", "task", "decoder", "generation", "engine", "energy", "sink", "experiment", "protocol",
)  # fmt: skip
# Libraries that log requests and uploads; only their warnings matter to us.
CHATTY = ("absl", "hydra", "httpx", "httpx2", "huggingface_hub", "wandb")


class MoreConfigs(SearchPathPlugin):
    """Makes each paper's folder below ``experiments`` a config group, and adds others' groups."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in (*experiments_dirs(), *conf_dirs()[1:]):
            search_path.append(folder.parent.name, f"file://{folder}")


LISTS = ("budget", "length")  # config groups that allow several choices at once
_ASKED = re.compile(rf"([+]{{0,2}})({'|'.join(LISTS)})=(.*)", re.S)
_WORD = re.compile(r"[^\[\],'\"\s]+")


def prepare_arguments(arguments: list[str]) -> list[str]:
    """A job's command line as Hydra understands it. Raises ValueError: see ``expand_recipes``."""
    return resolve_for_display(expand_recipes(arguments))


def expand_recipes(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra understands it: recipes outside the list of defaults get a plus,
    numbers of ``budget`` and ``length`` are quoted, and a target that the user names comes without
    the default pair's draft and heads; cells that the user names replace a recipe's lists of trees,
    unless lists are named, too. Raises ValueError: an unknown budget or length, or several
    choices of a group that takes one, or a decoder with its tree.
    """
    given = [each.lstrip("+").partition("=") for each in arguments]
    for group, _, value in given:
        if group == "decoder" and ":" in value and not set(value) & set("[{"):
            name, _, tree = (cells := value.strip("'\"")).partition(":")
            raise UsageError(
                f"decoder={cells}: a decoder and its tree are --decoders {cells} (Python: "
                f'decoders=["{cells}"]), or decoder={name} spec={tree.partition(",")[0]}'
            )
        if group in _SINGLE and value.startswith("["):  # which Hydra would lay over each other
            inside = value.strip("[]")
            hint = f"cells=[{inside}] for one job, " if group == "decoder" else ""
            raise UsageError(f"{group} takes one choice, got {value}: {hint}-m {group}={inside}")
    keys = {key for key, *_ in given}
    if "pair.target" in keys and "pair" not in keys:
        heads = any(key.startswith("pair.heads") for key in keys)
        gone = ["pair.draft", "pair.seen_in_training", *([] if heads else ["pair.heads"])]
        arguments = [*arguments, *(f"{key}=null" for key in gone if key not in keys)]
    own, *others = ({folder.name for folder in top.iterdir()} for top in experiments_dirs())
    papers = set[str]().union(*others)
    lists = {*LISTS, "trees", "~trees"}
    if "cells" in keys and keys & {*own, *papers, "experiment"} and not keys & lists:
        arguments = [*arguments, "trees=null"]  # a recipe's, which would be run, too
    none = {f"{group}=null" for group in (*own, "experiment")}
    named = [f"{each.removesuffix('null')}[]" if each in none else each for each in arguments]
    named = [f"+{each}" if each.partition("=")[0] in papers else each for each in named]
    return [quote_text_setting(quote_group_numbers(each)) for each in named]


def quote_group_numbers(argument: str) -> str:
    """An argument as Hydra understands it: ``budget=6``, ``budget=6,14``, ``budget=[6,14]`` or
    null, lists of trees by their number of nodes (or their depth, ``length``); any other stays.
    Each number has a file, such as ``conf/budget/14.yaml``; Hydra would read a bare one as an int,
    which names no config. Raises ValueError: a number that no file holds.
    """
    match = _ASKED.fullmatch(argument)
    if match is None:
        return argument
    group = match[2]
    known = sorted(filter(str.isdecimal, find_configs(group)), key=int)

    def quoted(word: re.Match[str]) -> str:
        if word[0] == "null" and "[" not in match[3]:
            return "[]"  # the default; Hydra takes no null
        if word[0].isidentifier() and word[0] != "null":
            return word[0]  # a config of the user's own
        if word[0] not in known:
            own = "; other trees are named by cells=[sd:7,rsd_c:2-2-1]" * (group == "budget")
            raise UsageError(f"{group} must be one of {', '.join(known)}{own}, got {word[0]}")
        return f"'{word[0]}'"

    return f"{match[1]}{group}=" + _WORD.sub(quoted, match[3].replace("'", "").replace('"', ""))


def quote_text_setting(argument: str) -> str:
    """An argument as Hydra understands it: of a setting that takes text alone, such as ``name``,
    the text that was typed, which Hydra may read as a number, 2026_11_27, or not at all, Küche.
    """
    key, _, value = argument.partition("=")
    if re.search(r"^$|null|['\"\[\]{}()$\\]", value) or not takes_text(RunSettings, key):
        return argument
    return f"{key}={','.join(quote_text(each.strip()) for each in value.split(','))}"


def resolve_for_display(arguments: Sequence[str]) -> list[str]:
    """The command line with which ``--cfg`` and ``--info`` show a job, of a sweep the first; a job
    alone is shown resolved.
    """
    asked = " ".join(arguments).replace("=", " ")
    if not (match := re.search(r"(?:^| )(?:--cfg|-c|--info|-i) (\w+)", asked)):
        return list(arguments)
    shown = [list_choices(each)[0] for each in arguments if each not in ("-m", "--multirun")]
    return [*shown, *(["--resolve"] if match[1] == "job" and "--resolve" not in arguments else [])]


def list_choices(argument: str) -> list[str]:
    """Returns a setting with each of its values, ``task=xsum,dolly`` as two, a list in brackets as
    one; any other argument as it is.
    """
    if argument.startswith("-") or "=" not in argument:
        return [argument]
    try:
        (override,) = OverridesParser.create().parse_overrides([argument])
    except OverrideParseException:
        return [argument]  # Hydra reads it again and says what is wrong
    if not override.is_sweep_override():
        return [argument]
    return [f"{override.get_key_element()}={each}" for each in override.sweep_string_iterator()]


def register() -> None:
    """Tells Hydra; doing it twice changes nothing."""
    Plugins.instance().register(MoreConfigs)
    JobReturn.return_value = property(_return_value, JobReturn.return_value.fset)
    ConfigLoaderImpl.load_sweep_config = _sweep_config
    ConfigRepository.load_config = _load_config
    Container.resolve_parse_tree = _resolve_within  # type: ignore[method-assign]
    OmegaConf.to_yaml = staticmethod(_to_yaml)  # type: ignore[assignment,method-assign]


_dump = OmegaConf.to_yaml
_resolve = Container.resolve_parse_tree
_left = [MOST_RESOLVED]  # of what a config's interpolations may come to
_load = ConfigRepository.load_config
_compose = ConfigLoaderImpl.load_sweep_config
_composed = WeakKeyDictionary[ConfigLoaderImpl, dict[tuple[str, ...], bytes]]()


def _load_config(self: ConfigRepository, config_path: str) -> ConfigResult | None:
    """Reads a config; one that is not ours or a package's is looked at first."""
    _left[0] = MOST_RESOLVED
    source = self._find_object_source(config_path, ObjectType.CONFIG)
    ours = map(str, (*conf_dirs(), *experiments_dirs()))
    if source is not None and source.scheme() == "file" and source.path not in ours:
        file = Path(source.path, source._normalize_file_name(config_path))
        try:
            check_config(file.read_text(encoding="utf-8"), config_path)
        except ValueError as error:
            raise UsageError(f"{str(file)!r}: {error}") from error
    return _load(self, config_path)


def _resolve_within(self: Container, *given: Any, **how: Any) -> Any:
    """Resolves an interpolation. Raises OmegaConfBaseException: the config has come to more."""
    found = _resolve(self, *given, **how)
    _left[0] -= 1 + (len(found) >> 16 if isinstance(found, str) else 0)
    if _left[0] < 0:
        raise OmegaConfBaseException(f"${{...}} of ${{...}} come to more than {MOST_RESOLVED}")
    return found


def _to_yaml(config: Any, **how: Any) -> str:
    """Returns a config without keys, as Hydra shows it and writes that of a sweep."""
    plain = OmegaConf.to_container(config, resolve=how.pop("resolve", False), enum_to_str=True)
    return redact(_dump(redact_values(plain), **how))


def _sweep_config(
    self: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]
) -> DictConfig:
    """Returns a job's config; Hydra composes once for all jobs that choose the same files."""
    words = [_override(each) for each in sweep_overrides]
    values = [each for each in words if _is_value(each, master_config)]
    known = _composed.setdefault(self, {})
    laid = {each.input_line for each in values}
    chosen = tuple(word for word in sweep_overrides if word not in laid)
    if chosen not in known:
        known[chosen] = pickle.dumps(_compose(self, master_config, list(chosen)))
    config: DictConfig = pickle.loads(known[chosen])
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    config.hydra.overrides.task = sweep_overrides
    how = config.hydra.job.config.override_dirname
    config.hydra.job.override_dirname = get_overrides_dirname(words, **how)
    return config


@cache
def _override(word: str) -> Override:
    return OverridesParser.create().parse_override(word)


def _is_value(override: Override, sweep: DictConfig) -> bool:
    """Returns whether a word is surely a setting's, and chooses no file."""
    key = override.key_or_group
    named = re.fullmatch(r"[\w.]+", key) and override.package is None
    chooses = key in sweep.hydra.runtime.choices and not isinstance(override.value(), dict)
    return bool(named) and not chooses and key.partition(".")[0] in sweep


def _return_value(job: JobReturn) -> Any:
    """A job's value; Hydra would print the overrides of one that failed above the line of ours."""
    if job.status is JobStatus.FAILED:
        raise job._return_value
    return job._return_value


def compose_config(words: Sequence[str]) -> DictConfig:
    """Returns the config of a job's words. Raises ValueError: no such setting or choice."""
    register()
    with _one_line_errors(), hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose("config", overrides=expand_recipes(list(words)))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(one_line(error)) from None


def parse_request(config: DictConfig) -> RunSettings:
    """Returns a composed config's job, checked by itself, without Hydra's part."""
    _left[0] = MOST_RESOLVED
    part = config.get("hydra") or (HydraConfig.get() if HydraConfig.initialized() else None)
    for group, choice in (part.runtime.choices if part else {}).items():
        if OmegaConf.is_list(choice) and group not in LISTS:
            raise UsageError(f"{group} must be one choice, got {list(choice)}")
    with _one_line_errors():
        parts = {key: config[key] for key in config if key != "hydra"}
        asked = check_settings({key: _to_container(part) for key, part in parts.items()})
    return replace(asked, pair=drop_borrowed_name(asked.pair, config_folders(part)))


def config_folders(part: Any = None) -> list[Path]:
    """Returns the folders that Hydra composes from, a user's ``--config-dir`` included; without its
    part of a config those of the job that runs here, or of all.
    """
    if part is None and not HydraConfig.initialized():
        return conf_dirs()
    sources = (part or HydraConfig.get()).runtime.config_sources
    return [Path(source.path) for source in sources if source.schema == "file"]


def _to_container(part: Any) -> Any:
    if not OmegaConf.is_config(part):
        return part
    return OmegaConf.to_container(part, resolve=True, throw_on_missing=True)


def data_of(target: object, path: object = None) -> str:
    """Where a pair's prompts come from by default: the file that is named, else small models have
    the shipped samples.
    """
    if path is not None:
        return "local"
    return "embedded" if str(target).startswith((EMBEDDED, RANDOM)) else "hub"


def questions_of(target: object, path: str | None) -> str:
    """Where the questions come from for a task whose file users fetch themselves: the file that is
    named, ``${questions_of:${pair.target},${.path}}``, else for the shipped models the shipped
    sample; any other pair has none, and says so.
    """
    return "local" if path is not None or data_of(target) != "embedded" else "embedded"


def file_of(target: object, path: str) -> str | None:
    """Returns the file that a recipe reads; None for pairs that use the shipped sample."""
    return None if data_of(target) == "embedded" else path


def unless_chat(chat: object, *stops: str) -> ListConfig:
    """What ends an answer in plain text, and would cut one in a fence: none of it in a chat."""
    return ListConfig([] if chat else [*stops])


def tree_of(
    paper: str, decoder: str, task: str, temperature: float | None, pair: Any, otherwise: str
) -> str:
    """The tree that a paper's tables have for a pair (``paper:`` of its config) at a task and
    temperature (null: 1), else another; in a recipe
    ``${tree_of:mcsd,mcsd_wor,${task.name},1.0,${pair.paper},'4-2-1'}``.
    """
    names = OmegaConf.to_container(pair) if OmegaConf.is_config(pair) else pair
    numbers = read_published(experiments_dir() / paper / FILE)
    warm = 1.0 if temperature is None else float(temperature)
    return find_published_tree(numbers, spellings(names), task, warm, decoder) or otherwise


# Not in ``register``: a launcher's worker resolves configs too, and imports this module alone.
for _resolver in (data_of, file_of, questions_of, tree_of, unless_chat):
    OmegaConf.register_new_resolver(_resolver.__name__, _resolver, replace=True)


_NO_CHOICE = re.compile(
    r"Could not find '([^']+)/([^'/]*)'\s+Available options in '.*?':(.*)", re.S
)
_NO_PLUG_IN = re.compile(
    r"(?:In 'hydra/launcher/(\w+)': )?Could not (?:find|load) 'hydra/launcher/"
    r"((?:joblib|submitit|ray)(?:_slurm|_local)?)'"
)
_SEVERAL = re.compile(r"Ambiguous value for argument '(.*?)'\n")
_NO_GROUP = re.compile(r"Could not override '(.*?)'\.\s+No match in the defaults list")
_NOISE = re.compile(r"Config search path:.*|\bfull_key: \S*|\bobject_type=\S+|See https\S+", re.S)


def one_line(error: BaseException) -> str:
    """Any error's message in one line that names the key, the value and the choices."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        told = "its value as YAML has it, a text with signs that are no plain letters as '\"...\"'"
        return f"cannot read {error.override!r}: a setting is KEY=VALUE, {told}"
    if match := _NO_PLUG_IN.search(text):
        told = LAUNCHERS[match[2]]
        return f"hydra/launcher={match[1] or match[2]} is not installed: {told}"
    if match := _NO_CHOICE.search(text):
        group = match[1]
        choice = match[2]
        known = match[3].split("Config search path")[0].split()
        known.sort(key=lambda each: int(each) if each.isdecimal() else 0)
        known = [*LAUNCHERS] if group == "hydra/launcher" else known
        near = suggest(choice, known, f"{group}=")
        return f"{group} must be one of {', '.join(known)}, got {choice!r}{near}"
    if match := _SEVERAL.match(text):
        return f"{match[1]} names several: -m {match[1]} runs a job for each"
    if match := _NO_GROUP.match(text):
        return f"there is no config group {match[1]!r} to choose from; --help lists those there are"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return _explain_key_error(cause)
        cause = cause.__cause__ or cause.__context__
    return _plain(text)


class JobError(Exception):
    """Ends a command with a status that is not 0; without a message, a table has said why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def to_job_error(error: Exception, resumes: str) -> JobError | None:
    """Returns an error as a command's status and last line; None of a fault of ours."""
    if isinstance(error, JobError):
        return error
    if isinstance(error, OSError) and (refused := files.explain_os_error(error)):
        return JobError(1, f"{refused}; what was done is kept, {resumes}")
    if isinstance(error, UsageError | HydraException | OmegaConfBaseException):
        return JobError(2, one_line(error))
    if _comes_from_hydra(error):
        return JobError(2, f"{one_line(error)} (in {' '.join(sys.argv[1:])})")
    # Launchers, whose errors are private classes, say that a process died.
    if type(error).__module__.partition(".")[0] in {"joblib", "submitit", "ray"}:
        kept = f"the cells that had ended are kept; {resumes}"
        return JobError(1, f"a worker was lost: {one_line(error)}\n{kept}")
    return None


def run_application(
    job: Callable[[DictConfig], None],
    config: str,
    resumes: str,
    program: str = "spec_bench",
    finish: Callable[[], None] = lambda: None,
) -> int:
    """Runs what a config of ours describes, as the command line says, once or once for each job of
    a sweep, and ``finish`` at the end, whatever came; returns the exit status. A line on an
    interrupt ends in ``resumes``, lines on errors begin with the ``program``.
    """
    register()
    # Hydra would print its errors over several lines and exit with 1; we want them raised.
    os.environ[FULL_ERROR] = "1"
    logging.setLogRecordFactory(RedactedRecord)
    application = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config)
    try:
        with signals.raise_on_signals():
            try:
                application(job)()
            finally:
                finish()
    except KeyboardInterrupt:
        if not signals.was_interrupted():
            print(f"interrupted; {resumes}", file=sys.stderr)
        return 130
    except Exception as error:
        if signals.was_interrupted():  # turned the interrupt into another error
            return 130
        told = to_job_error(error, resumes)
        if told is None:
            return report_fault(error, program, resumes)
        if _wants_trace:
            raise
        if told.message:
            print_error(f"{program}: {told.message}")
        return told.status
    return 0


def _comes_from_hydra(error: BaseException) -> bool:
    """Returns whether Hydra, OmegaConf or a launcher refused a config."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0] if frames else ""
    refused = isinstance(error, ValueError) and package in {"joblib", "submitit", "ray"}
    return refused or package in {"hydra", "omegaconf", "antlr4", "yaml"}


def _explain_key_error(error: OmegaConfBaseException) -> str:
    """OmegaConf's errors know where they happened."""
    key = str(error.full_key)
    word = str(error.key)
    if not re.search("not in (struct|')", str(error)):
        return f"{key}: {_plain(str(error))}"
    parent = error.parent_node
    known = sorted(str(each) for each in parent) if isinstance(parent, Mapping) else []
    return unknown_setting(key, word, [each for each in known if each != "hydra"])


def _plain(text: str) -> str:
    return " ".join(_NOISE.sub(" ", text).split())
