"""Composes our configs by Hydra: adds our folders to its search path, rewords its errors.

``rsd=exp1`` is ``experiments/rsd/exp1.yaml``. Another package registers an entry point,

    [project.entry-points."spec_bench.configs"]
    mine = "my_package"

and lays its folder out like ours: ``my_package/conf/decoder/coin.yaml`` is then ``decoder=coin``
(and ``cells=[coin:4x3]``), ``conf/task`` and ``conf/pair`` likewise, and
``my_package/experiments/mypaper/exp1.yaml`` is ``mypaper=exp1``. If two files have the same name,
our file is taken.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.jobs.config.config import RunSettings, validate_run_settings
from spec_bench.jobs.config.flags import LAUNCHERS
from spec_bench.jobs.config.model_files import EMBEDDED_PREFIX
from spec_bench.jobs.config.pair import drop_name_of_other_pair
from spec_bench.settings.configs import (
    get_conf_dir,
    get_experiments_dir,
    list_conf_dirs,
    list_experiments_dirs,
)
from spec_bench.settings.fields import describe_unknown_setting, format_suggestion
from spec_bench.settings.foreign import (
    load_yaml_within_limits,
    refuse_costly_interpolations,
    refuse_unsafe_config,
)
from spec_bench.settings.override_values import quote_if_needed, quote_value
from spec_bench.settings.validation import takes_text
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.published import (
    FILE,
    find_tree_of_published_speedup,
    list_pair_spellings,
    read_published_numbers,
)

_ONE_CHOICE_GROUPS = (
    "pair", "task", "decoder", "generation", "engine", "energy", "sink", "experiment", "protocol",
)  # fmt: skip
LISTS = ("budget", "length")  # settings that name lists of trees, in ``_LISTS_FILE``
_LISTS_FILE = "tree_lists.yaml"
_SEARCH_PATH_KEY = "hydra.searchpath"  # a user's own folders of configs


class ConfigGroupsPlugin(SearchPathPlugin):
    """Adds papers' folders below ``experiments``, and other packages' folders, as config groups."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in (*list_experiments_dirs(), *list_conf_dirs()[1:]):
            search_path.append(folder.parent.name, f"file://{folder}")


_Files: Any = next(
    kind for kind in Plugins.instance().discover(ConfigSource) if kind.scheme() == "file"
)


class CheckedConfigSource(_Files):
    """A folder of configs that are neither ours nor a package's; each is
    checked before it is read.
    """

    @staticmethod
    def scheme() -> str:
        """Returns the prefix of its paths."""
        return "foreign"

    def load_config(self, config_path: str) -> ConfigResult:
        """Reads a config. Raises UsageError if it would do more than set values."""
        file = Path(self.path, f"{config_path.removesuffix('.yaml')}.yaml")
        try:
            refuse_unsafe_config(file.read_text(encoding="utf-8"), config_path)
        except ValueError as error:
            raise UsageError(f"{str(file)!r}: {error}") from error
        return super().load_config(config_path)


def to_hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Converts the command line to Hydra's. Recipes outside the list of defaults get a plus;
    folders of configs are searched as foreign; a target that the user names drops the default
    pair's draft and heads; cells that the user names replace a recipe's lists of trees, unless
    lists are named too. Raises ValueError if a group that takes one choice gets several, or if a
    decoder is given with its tree.
    """
    key_values = [word.lstrip("+").partition("=") for word in arguments]
    for group, _, value in key_values:
        if group == "decoder" and ":" in value and not set(value) & set("[{"):
            name, _, tree = (cells := value.strip("'\"")).partition(":")
            raise UsageError(
                f"decoder={cells}: a decoder and its tree are --decoders {cells} (Python: "
                f'decoders=["{cells}"]), or decoder={name} spec={tree.partition(",")[0]}'
            )
        if group in _ONE_CHOICE_GROUPS and value.startswith("["):  # Hydra would merge the choices
            choices = value.strip("[]")
            hint = f"cells=[{choices}] for one job, " if group == "decoder" else ""
            raise UsageError(f"{group} takes one choice, got {value}: {hint}-m {group}={choices}")
    keys = {key for key, *_ in key_values}
    if "pair.target" in keys and "pair" not in keys:
        heads = any(key.startswith("pair.heads") for key in keys)
        pair_keys = ["pair.draft", "pair.seen_in_training", *([] if heads else ["pair.heads"])]
        arguments = [*arguments, *(f"{key}=null" for key in pair_keys if key not in keys)]
    our_papers, *other_papers = (
        {folder.name for folder in top.iterdir()} for top in list_experiments_dirs()
    )
    papers = set[str]().union(*other_papers)
    lists = (*LISTS, "trees")
    if (
        "cells" in keys
        and keys & {*our_papers, *papers, "experiment"}
        and not keys & {*lists, "~trees"}
    ):
        # else the recipe's lists would be run too
        arguments = [*arguments, *(f"{name}=null" for name in lists)]
    empty_choices = {f"{group}=null" for group in (*our_papers, "experiment")}
    words = [
        f"{word.removesuffix('null')}[]" if word in empty_choices else word for word in arguments
    ]
    words = [f"+{word}" if word.partition("=")[0] in papers else word for word in words]
    return _merge_search_folders([quote_text_setting(word) for word in words])


def _merge_search_folders(arguments: Sequence[str]) -> list[str]:
    """Merges all folders of configs that the words name into one search path."""
    words = [word for word in arguments if not word.startswith(f"{_SEARCH_PATH_KEY}=")]
    folder_lists = [parse_override(word).value() for word in arguments if word not in words]
    folders = [
        str(folder).removeprefix("file://")
        for folder_list in folder_lists
        for folder in folder_list
    ]
    places = [
        folder if "://" in folder else f"foreign://{Path(folder).absolute()}" for folder in folders
    ]
    return [*words, f"{_SEARCH_PATH_KEY}={quote_value(places)}"] if folder_lists else words


def quote_text_setting(argument: str) -> str:
    """Quotes the value of a setting that takes only text, such as ``name``, because Hydra may read
    it as a number (2026_11_27) or not at all (Küche).
    """
    key, _, value = argument.partition("=")
    if re.search(r"^$|null|['\"\[\]{}()$\\]", value) or not takes_text(RunSettings, key):
        return argument
    return f"{key}={','.join(quote_if_needed(text.strip()) for text in value.split(','))}"


def parse_override(word: str) -> Override:
    """Parses an override; its globs match the configs that Hydra searches now. Raises Hydra's
    error.
    """
    global_hydra = GlobalHydra.instance()
    loader = global_hydra.config_loader() if global_hydra.is_initialized() else None
    return OverridesParser.create(config_loader=loader).parse_overrides([word])[0]


def is_sweep_override(word: str) -> bool:
    """Returns whether an override sweeps over several values, with a job for each."""
    return parse_override(word).is_sweep_override()


def split_swept_values(word: str) -> list[str]:
    """Splits an override into one per swept value: ``task=xsum,dolly`` gives two. An override that
    does not sweep, such as a list in brackets, is returned as the only item.
    """
    override = parse_override(word)
    if not override.is_sweep_override():
        return [word]
    return [f"{override.get_key_element()}={choice}" for choice in override.sweep_string_iterator()]


def register_config_plugins() -> None:
    """Registers our config folders with Hydra; a second call changes nothing."""
    Plugins.instance().register(ConfigGroupsPlugin)
    Plugins.instance().register(CheckedConfigSource)


def compose_config(words: Sequence[str]) -> DictConfig:
    """Composes the config of a job's words. Raises UsageError if there is no such setting or
    choice.
    """
    with hydra_errors_as_usage_errors(), config_loader() as loader:
        return strip_hydra(compose_hydra_config(loader, "config", to_hydra_arguments(words)))


def strip_hydra(config: DictConfig) -> DictConfig:
    """Returns a config without Hydra's part."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


@contextmanager
def config_loader() -> Iterator[ConfigLoader]:
    """Yields Hydra's loader of our configs."""
    register_config_plugins()
    with hydra.initialize_config_dir(str(get_conf_dir()), "spec_bench", version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def compose_hydra_config(
    loader: ConfigLoader, name: str, words: Sequence[str], sweeps: bool = False
) -> DictConfig:
    """Composes a config, with Hydra's part. Raises UsageError if a setting has several values and
    the config does not sweep, or if its interpolations expand to too many.
    """
    swept_words = [word for word in words if is_sweep_override(word)]
    mode = RunMode.MULTIRUN if sweeps and swept_words else RunMode.RUN
    config = loader.load_configuration(name, [*words], mode, validate_sweep_overrides=False)
    if swept_words and not (sweeps and config.hydra.mode == RunMode.MULTIRUN):
        raise UsageError(f"{swept_words[0]} names several: -m {swept_words[0]} runs a job for each")
    return refuse_costly_foreign_config(config)


def refuse_costly_foreign_config(config: DictConfig) -> DictConfig:
    """Returns a config unchanged. Raises UsageError if parts of it are foreign and its
    interpolations expand to too many.
    """
    if any(source.schema == "foreign" for source in config.hydra.runtime.config_sources):
        refuse_costly_interpolations(OmegaConf.to_container(config, resolve=False))
    return config


@contextmanager
def hydra_errors_as_usage_errors() -> Iterator[None]:
    """Converts Hydra's errors within the block into UsageErrors of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(explain_in_one_line(error)) from None


def parse_request(config: DictConfig) -> RunSettings:
    """Resolves and validates a composed config, without Hydra's part."""
    hydra_config = config.get("hydra") or (HydraConfig.get() if HydraConfig.initialized() else None)
    for group, choice in (hydra_config.runtime.choices if hydra_config else {}).items():
        if OmegaConf.is_list(choice):
            raise UsageError(f"{group} must be one choice, got {list(choice)}")
    folders = list_config_folders(hydra_config)
    with hydra_errors_as_usage_errors():
        parts = {key: _resolve_to_container(config[key]) for key in config if key != "hydra"}
        names_by_group = {group: parts.pop(group, None) for group in LISTS}
        if any(names_by_group.values()) and "trees" in parts:  # not with ``~trees``
            parts["trees"] = read_chosen_tree_lists(names_by_group, folders) | (
                parts["trees"] or {}
            )
        request = validate_run_settings(parts)
    return replace(request, pair=drop_name_of_other_pair(request.pair, folders))


def read_chosen_tree_lists(
    names_by_group: Mapping[str, Any], folders: Sequence[Path]
) -> dict[str, Any]:
    """Reads the lists of trees that ``budget`` and ``length`` choose (one number or several), keyed
    ``budget 30`` and the like.
    """
    chosen_lists = {}
    files = [file for folder in folders if (file := folder / _LISTS_FILE).is_file()]
    list_files = [
        load_yaml_within_limits(file.read_text(encoding="utf-8")) for file in reversed(files)
    ]
    for group, names in names_by_group.items():
        lists = {
            str(name): trees
            for list_file in list_files
            for name, trees in list_file.get(group, {}).items()
        }
        for name in names if isinstance(names, list) else [names] * (names is not None):
            if str(name) not in lists:
                hint = "; other trees are named by cells=[sd:7,rsd_c:2-2-1]" * (group == "budget")
                raise UsageError(f"{group} must be one of {', '.join(lists)}{hint}, got {name!r}")
            chosen_lists[f"{group} {name}"] = lists[str(name)]
    return chosen_lists


def list_config_folders(hydra_config: Any = None) -> list[Path]:
    """Lists the folders that Hydra composes from, a user's ``--config-dir`` included.
    ``hydra_config`` is the ``hydra`` of a config, by default of the job that runs here; if no job
    runs, all folders.
    """
    if hydra_config is None and not HydraConfig.initialized():
        return list_conf_dirs()
    sources = (hydra_config or HydraConfig.get()).runtime.config_sources
    return [Path(source.path) for source in sources if source.schema in ("file", "foreign")]


def _resolve_to_container(part: Any) -> Any:
    if not OmegaConf.is_config(part):
        return part
    return OmegaConf.to_container(part, resolve=True, throw_on_missing=True)


def choose_prompt_source(target: object, path: object = None) -> str:
    """Chooses the default source of prompts for a pair: ``local`` if a file is named, else
    ``embedded`` (the shipped samples) for small models, else ``hub``.
    """
    if path is not None:
        return "local"
    return "embedded" if str(target).startswith((EMBEDDED_PREFIX, RANDOM)) else "hub"


def choose_question_source(target: object, path: str | None) -> str:
    """Chooses the source of the questions of a task with a file that users fetch themselves:
    ``${questions_of:${pair.target},${.path}}`` is ``embedded``, the shipped sample, for the shipped
    models without a file, else ``local``, which is refused if no file is named.
    """
    return "local" if path is not None or choose_prompt_source(target) != "embedded" else "embedded"


def keep_path_unless_embedded(target: object, path: str) -> str | None:
    """Returns the ``path`` of a file; None for pairs that use the shipped (embedded) sample."""
    return None if choose_prompt_source(target) == "embedded" else path


def select_stops_outside_chat(chat: object, *stops: str) -> ListConfig:
    """Returns the ``stops`` for plain text; empty in a chat, where they would
    cut a fenced answer.
    """
    return ListConfig([] if chat else [*stops])


def find_paper_tree(
    paper: str, decoder: str, task: str, temperature: float | None, pair: Any, otherwise: str
) -> str:
    """Finds the tree in a paper's tables for a pair (``paper:`` of its config), a task and a
    temperature (null: 1); ``otherwise`` if there is none. In a recipe:
    ``${tree_of:mcsd,mcsd_wor,${task.name},1.0,${pair.paper},'4-2-1'}``.
    """
    names = OmegaConf.to_container(pair) if OmegaConf.is_config(pair) else pair
    numbers = read_published_numbers(get_experiments_dir() / paper / FILE)
    warm = 1.0 if temperature is None else float(temperature)
    return (
        find_tree_of_published_speedup(numbers, list_pair_spellings(names), task, warm, decoder)
        or otherwise
    )


# Not in ``register_config_plugins``, because a launcher's worker, which also resolves configs,
# imports only this module.
_RESOLVERS: dict[str, Callable[..., Any]] = {
    "data_of": choose_prompt_source,
    "file_of": keep_path_unless_embedded,
    "questions_of": choose_question_source,
    "tree_of": find_paper_tree,
    "unless_chat": select_stops_outside_chat,
}
for _name, _resolver in _RESOLVERS.items():
    OmegaConf.register_new_resolver(_name, _resolver, replace=True)


_NO_CHOICE = re.compile(
    r"Could not find '([^']+)/([^'/]*)'\s+Available options in '.*?':(.*)", re.S
)
_NO_PLUG_IN = re.compile(
    r"(?:In 'hydra/launcher/(\w+)': )?Could not (?:find|load) 'hydra/launcher/"
    r"((?:joblib|submitit|ray)(?:_slurm|_local)?)'"
)
_NO_GROUP = re.compile(r"Could not override '(.*?)'\.\s+No match in the defaults list")
_HYDRA_NOISE = re.compile(
    r"Config search path:.*|\bfull_key: \S*|\bobject_type=\S+|See https\S+", re.S
)


def explain_in_one_line(error: BaseException) -> str:
    """Explains an error in one line that names the key, the value and the choices."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        explanation = (
            "its value as YAML has it, a text with signs that are no plain letters as '\"...\"'"
        )
        return f"cannot read {error.override!r}: a setting is KEY=VALUE, {explanation}"
    if match := _NO_PLUG_IN.search(text):
        explanation = LAUNCHERS[match[2]]
        return f"hydra/launcher={match[1] or match[2]} is not installed: {explanation}"
    if match := _NO_CHOICE.search(text):
        group = match[1]
        choice = match[2]
        choices = match[3].split("Config search path")[0].split()
        choices.sort(key=lambda name: int(name) if name.isdecimal() else 0)
        choices = [*LAUNCHERS] if group == "hydra/launcher" else choices
        suggestion = format_suggestion(choice, choices, f"{group}=").removeprefix("; ")
        message = f"{group} must be one of {', '.join(choices)}, got {choice!r}"
        return f"{suggestion} {message}" if suggestion else message
    if match := _NO_GROUP.match(text):
        return f"there is no config group {match[1]!r} to choose from; --help lists those there are"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return _explain_key_error(cause)
        cause = cause.__cause__ or cause.__context__
    return _strip_hydra_noise(text)


def _explain_key_error(error: OmegaConfBaseException) -> str:
    """Explains OmegaConf's error about a key, with similar keys."""
    key = str(error.full_key)
    word = str(error.key)
    if not re.search("not in (struct|')", str(error)):
        return f"{key}: {_strip_hydra_noise(str(error))}"
    parent = error.parent_node
    keys = sorted(str(name) for name in parent) if isinstance(parent, Mapping) else []
    return describe_unknown_setting(key, word, [name for name in keys if name != "hydra"])


def _strip_hydra_noise(text: str) -> str:
    return " ".join(_HYDRA_NOISE.sub(" ", text).split())
