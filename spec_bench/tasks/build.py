"""From the mapping that a YAML file in ``conf/task`` holds to a task, checked.

Knows which keys and values there are; nothing about rows or prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_bench.tasks.conversation import LATER_TURNS
from spec_bench.tasks.random_prompts import RandomPrompts, build_random_prompts
from spec_bench.tasks.source import Hub, Source
from spec_bench.tasks.task import CHAT, Task
from spec_bench.tasks.template import placeholders


def with_metrics(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with ``metrics``, where it is given, in place of ``scores``."""
    values = dict(config)
    metrics = values.pop("metrics", None)
    if metrics is not None:
        values["scores"] = metrics
    return values


def build_task(config: Mapping[str, Any]) -> Task | RandomPrompts:
    """A task from the plain mapping that a YAML file in ``conf/task`` holds.

    Raises:
        ValueError: unknown or missing keys, or values out of range.
    """
    if dict(config.get("source") or {}).get("kind") == "random":
        return build_random_prompts(config)
    values = with_metrics(config)
    _keys(values, Task, "task", required=("name", "source", "template"))
    source = dict(values["source"])
    _keys(source, Source, f"task {values['name']}: source", required=("kind",))
    if source.get("hub") is not None:
        hub = dict(source["hub"])
        _keys(hub, Hub, f"task {values['name']}: source.hub", required=("path", "split"))
        source["hub"] = Hub(**hub)
    values["source"] = Source(**source)
    for name in ("template", "stop", "scores"):
        given = values.get(name) or ()
        values[name] = (given,) if isinstance(given, str) else tuple(given)
    for name in ("fields", "generation"):
        values[name] = dict(values.get(name) or {})
    task = Task(**values)
    if task.chat not in CHAT:
        raise ValueError(f"task {task.name}: chat is {task.chat!r}; choose from auto, true, false")
    if task.later_turns not in LATER_TURNS:
        raise ValueError(
            f"task {task.name}: later_turns is {task.later_turns!r};"
            f" choose from {', '.join(LATER_TURNS)}"
        )
    if task.answers is not None and task.later_turns != "fixed":
        raise ValueError(
            f"task {task.name}: answers is a file for later_turns=fixed, not {task.later_turns}"
        )
    if not isinstance(task.judged, bool):
        raise ValueError(f"task {task.name}: judged is {task.judged!r}; choose from true, false")
    for template in (*task.template, task.plain):
        placeholders(template)
    return task


def _keys(values: Mapping[str, Any], kind: type[Any], what: str, required: tuple[str, ...]) -> None:
    known = kind.__dataclass_fields__
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"{what}: unknown {', '.join(unknown)}; choose from {', '.join(known)}")
    if missing := [name for name in required if values.get(name) in (None, "")]:
        raise ValueError(f"{what}: {', '.join(missing)} must be given")
