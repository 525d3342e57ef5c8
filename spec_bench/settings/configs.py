"""Finds and reads configs and papers, ours and those of other packages.

``conf`` holds Hydra's config groups, ``experiments`` a folder for each paper. Knows YAML files and
their ``defaults`` but not Hydra, so that a report reads them without importing it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from spec_bench.settings.fields import to_one_line
from spec_bench.settings.registry import list_plugin_config_folders
from spec_bench.system.errors import UsageError
from spec_bench.system.files import get_data_folder

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def get_conf_dir() -> Path:
    """Returns our folder of config groups: in the package for a wheel, beside it in a checkout."""
    return get_data_folder("conf")


def get_experiments_dir() -> Path:
    """Returns our folder of papers: in the package for a wheel, beside it in a checkout."""
    return get_data_folder("experiments")


def list_conf_dirs() -> list[Path]:
    """Returns all folders of config groups, ours first."""
    return [get_conf_dir(), *_list_plugin_folders("conf")]


def list_experiments_dirs() -> list[Path]:
    """Returns all folders of papers, ours first."""
    return [get_experiments_dir(), *_list_plugin_folders("experiments")]


def find_configs(group: str, folders: Iterable[Path] = ()) -> dict[str, Path]:
    """Finds a group's files by name in ``folders``, by default in all; of equal names the first
    wins.
    """
    path_by_name: dict[str, Path] = {}
    for folder in [*folders] or list_conf_dirs():
        for path in sorted(folder.glob(f"{group}/*.yaml")):
            path_by_name.setdefault(path.stem, path)
    return path_by_name


def read_yaml(path: Path) -> Any:
    """Reads a YAML file. Raises UsageError, with the file and the position, if it is not YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = to_one_line(error).replace('in "<unicode string>", ', "in ")
        raise UsageError(f"{path}: {message}") from None


def read_composed_config(path: Path) -> dict[str, Any]:
    """Reads a config such as ``conf/pair/llama2_7b.yaml``, composed as by Hydra: over the files of
    its ``defaults``, such as ``shared/llama2@_here_``, from the same folder or the same group of
    any config folder. Raises UsageError, which names both files, if a default is in neither.
    """
    config: dict[str, Any] = read_yaml(path) or {}
    config_below: dict[str, Any] = {}
    for entry in config.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            name = f"{entry.partition('@')[0]}.yaml"
            groups = (path.parent, *(folder / path.parent.name for folder in list_conf_dirs()))
            file_below = next((group / name for group in groups if (group / name).is_file()), None)
            if file_below is None:
                raise UsageError(f"{path}: its defaults name {entry!r}, which is no file beside it")
            config_below = _merge_configs(config_below, read_composed_config(file_below))
    return _merge_configs(config_below, config)


def _merge_configs(lower: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two configs, groups of settings key by key; ``upper`` wins."""
    groups = {
        key: _merge_configs(lower[key], value)
        for key, value in upper.items()
        if isinstance(value, dict) and isinstance(lower.get(key), dict)
    }
    return {**lower, **upper, **groups}


def _list_plugin_folders(name: str) -> list[Path]:
    """Lists the folders called ``name`` in other packages' config folders."""
    return [folder / name for folder in list_plugin_config_folders() if (folder / name).is_dir()]
