"""Tasks: dataset, prompt template, stop rule, references and the names of the scores."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spec_bench.settings.configs import get_conf_dir, read_composed_config
from spec_bench.settings.validation import read_settings
from spec_bench.tasks.example import Example
from spec_bench.tasks.random_prompts import RandomPromptTask
from spec_bench.tasks.task import Task

__all__ = [
    "Example",
    "RandomPromptTask",
    "Task",
    "build_task",
    "build_task_from_files",
    "override_scores_with_metrics",
]


def override_scores_with_metrics(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the config in which ``metrics``, if given, replace ``scores``."""
    values = dict(config)
    metrics = values.pop("metrics", None)
    if metrics is not None:
        values["scores"] = metrics
    return values


def build_task(config: Mapping[str, Any]) -> Task | RandomPromptTask:
    """Builds a task from the mapping of a YAML file in ``conf/task``. Raises UsageError with one
    line that names what is unknown, missing or out of range.
    """
    source = config.get("source") if isinstance(config, Mapping) else None
    if isinstance(source, Mapping) and source.get("kind") == "random":
        left_out = {"overlong"}  # recipes set it
        if {"template", "chat"} <= {*config}:  # a task of texts: keeps its name and sampling
            left_out = {setting.name for setting in fields(Task)} - {"name", "generation"}
            source = {"kind": "random"}
        values = {key: value for key, value in config.items() if key not in left_out}
        return read_settings(RandomPromptTask, {**values, "source": source}, "task")
    return read_settings(Task, config, "task")


def build_task_from_files(paths: Any, **overrides: Any) -> Task:
    """Builds a task from one or several prompt files of the user, as ``run --data`` does. The index
    of a row is its id. Raises UsageError like ``build_task``.
    """
    values = {
        **read_composed_config(get_conf_dir() / "task" / "jsonl.yaml"),
        "fields": {"id": []},
        **overrides,
    }
    return read_settings(Task, {**values, "source": {"kind": "local", "path": paths}}, "task")
