"""Sinks, which receive a job's results after they are on disk, and the config group ``sink``.

    @sink("mail")
    def build_mail(config, folder):
        return Mail(config["to"])

``build_mail`` gets the config's ``sink.mail``. Another package declares the module as an entry
point of ``spec_bench.sinks``. The CSV, the progress bar and the terminal's table are no sinks in
this sense.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from spec_bench.records.types import CellResult, Generation
from spec_bench.settings.registry import Registry
from spec_bench.settings.validation import (
    NonEmptyStr,
    Requirement,
    StrictBool,
    StringConstraints,
    read_settings,
    settings,
)


@dataclass(frozen=True)
class LoggedCell:
    """Results of one cell, to be logged by sinks."""

    result: CellResult
    settings: Mapping[str, Any]  # resolved settings; their hash is the run id
    # in the order of decoding; of a failed cell those before the failure
    generations: Sequence[Generation] = field(repr=False)
    folder: Path  # the cell's folder, also for notes of what was logged
    # commit, versions and machine, see ``measure.provenance``
    origin: Mapping[str, Any] = field(default_factory=dict)
    # score -> prompt id -> value for that answer
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)


class Sink(Protocol):
    """Interface of a sink."""

    def take(self, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs results of cells and the rows of a whole table; warns if it cannot send them."""
        ...


sink: Registry[Callable[[Any, Path], Sink | None]] = Registry(
    "sink",
    "spec_bench.sinks",
    within="spec_bench.sinks",
)
"""Builders of the sinks by name, from the sink's config and the experiment's folder. A builder
returns None if its sink is off, and raises ``ValueError`` for wrong settings.
"""


Project = Annotated[
    NonEmptyStr,
    StringConstraints(pattern=r"^[^/\\#?%:]{1,128}$"),
    Requirement("1 to 128 letters, none of / \\ # ? % : (a team is sink.wandb.entity)"),
]
"""W&B's own rule for a project's name."""
Entity = Annotated[
    NonEmptyStr, StringConstraints(pattern=r"^[^/\s]+$"), Requirement("a team's or a user's name")
]


@settings
class WandbSettings:
    """``sink.wandb``; ``conf/sink/default.yaml`` explains the keys."""

    enabled: StrictBool = False
    project: Project = "spec_bench"
    group: NonEmptyStr = "default"
    mode: Literal["online", "offline", "disabled"] = "offline"
    entity: Entity | None = None
    tags: tuple[NonEmptyStr, ...] | None = ()
    system_metrics: StrictBool = False


@settings
class SinkSettings:
    """``sink``; ``conf/sink/default.yaml`` explains the keys."""

    progress: StrictBool = True
    table: StrictBool = True
    wandb: WandbSettings = field(default_factory=WandbSettings)
    # settings of other packages' sinks, by name, not checked
    more: dict[str, Any] = field(default_factory=dict)


def parse_sink_settings(config: SinkSettings | Mapping[str, Any]) -> SinkSettings:
    """Parses the config group ``sink``. Raises UsageError for an unknown sink or a wrong value."""
    if isinstance(config, SinkSettings):
        return config
    if not isinstance(config, Mapping):
        return read_settings(SinkSettings, config, "sink")
    own_names = {field.name for field in fields(SinkSettings)} - {"more"}
    more = {name: value for name, value in config.items() if name not in own_names and name in sink}
    own_settings = {name: value for name, value in config.items() if name not in more}
    return replace(read_settings(SinkSettings, own_settings, "sink"), more=more)


def build_sinks(settings: SinkSettings, folder: Path) -> list[Sink]:
    """Builds the sinks that are on. Raises UsageError if their settings are wrong."""
    settings_by_name = {"wandb": settings.wandb, **settings.more}
    sinks = [sink[name](value, folder) for name, value in settings_by_name.items()]
    return [built_sink for built_sink in sinks if built_sink is not None]
