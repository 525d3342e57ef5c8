"""Tasks: dataset, prompt template, stop rule, references and the names of the scores."""

from collections.abc import Mapping
from typing import Any

from spec_bench.settings.configs import conf_dir, read_config
from spec_bench.settings.validation import check
from spec_bench.tasks.example import Example
from spec_bench.tasks.random_prompts import RandomPrompts
from spec_bench.tasks.task import Task

__all__ = ["Example", "RandomPrompts", "Task", "build_task", "merge_metrics", "read_own"]


def merge_metrics(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with ``metrics``, where it is given, in place of ``scores``."""
    values = dict(config)
    metrics = values.pop("metrics", None)
    if metrics is not None:
        values["scores"] = metrics
    return values


def build_task(config: Mapping[str, Any]) -> Task | RandomPrompts:
    """A task from the plain mapping that a YAML file in ``conf/task`` holds. Raises ValueError: one
    line that names what is unknown, missing or out of range.
    """
    source = config.get("source") if isinstance(config, Mapping) else None
    if isinstance(source, Mapping) and source.get("kind") == "random":
        # Recipes say what becomes of overlong prompts; these are all of one length.
        given = {key: value for key, value in config.items() if key != "overlong"}
        return check(RandomPrompts, given, "task")
    return check(Task, config, "task")


def read_own(path: Any, **more: Any) -> Task:
    """The task that asks the prompts of a user's own file, or of several, as ``run --data`` does;
    its rows may share ids. Raises ValueError: as ``build_task``.
    """
    values = {**read_config(conf_dir() / "task" / "jsonl.yaml"), "fields": {"id": []}, **more}
    return check(Task, {**values, "source": {"kind": "local", "path": path}}, "task")
