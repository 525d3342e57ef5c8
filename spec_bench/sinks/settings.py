"""The config group ``sink``: what is shown and what is logged where."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from spec_bench.validation import Flag, Text, settings


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
