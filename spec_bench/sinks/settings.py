"""The config group ``sink``: what is shown and what is logged where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, Literal

from spec_bench.settings.validation import Flag, Text, check, settings
from spec_bench.sinks.sink import Sink, sink


@settings
class WandbSettings:
    """``sink.wandb``; meanings stand in ``conf/sink/default.yaml``."""

    enabled: Flag = False
    project: Text = "spec_bench"
    group: Text = "default"
    mode: Literal["online", "offline", "disabled"] = "offline"
    entity: Text | None = None
    tags: tuple[Text, ...] | None = ()
    system_metrics: Flag = False


@settings
class SinkSettings:
    """``sink``; meanings stand in ``conf/sink/default.yaml``."""

    progress: Flag = True
    table: Flag = True
    wandb: WandbSettings = field(default_factory=WandbSettings)
    # settings of other packages' sinks, by name, as they were written
    more: dict[str, Any] = field(default_factory=dict)


def sink_settings(config: SinkSettings | Mapping[str, Any]) -> SinkSettings:
    """Checks the config group ``sink``; other packages' sinks check their own part when built.

    Raises:
        ValueError: an unknown sink or setting, or a value that cannot be right.
    """
    if isinstance(config, SinkSettings) or not isinstance(config, Mapping):
        return config if isinstance(config, SinkSettings) else check(SinkSettings, config, "sink")
    ours = {each.name for each in fields(SinkSettings)} - {"more"}
    more = {name: value for name, value in config.items() if name not in ours and name in sink}
    asked = {name: value for name, value in config.items() if name not in more}
    return replace(check(SinkSettings, asked, "sink"), more=more)


def build_sinks(settings: SinkSettings, folder: Path) -> list[Sink]:
    """The sinks that are on.

    Raises:
        ValueError: settings that cannot be right.
    """
    asked = {"wandb": settings.wandb, **settings.more}
    built = [sink[name](value, folder) for name, value in asked.items()]
    return [each for each in built if each is not None]
