"""A sink, which is handed a job's results once they are on disk; and the config group ``sink``.

    @sink("mail")
    def build_mail(config, folder):
        return Mail(config["to"])

``sink.mail`` of the config is then what ``build_mail`` is given; another package names the module
as an entry point of ``spec_bench.sinks``. The CSV, the progress bar and the table on the terminal
are no sinks in this sense: they are always there or a matter of one word.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from spec_bench.records.types import CellResult, Generation
from spec_bench.settings.registry import Registry
from spec_bench.settings.validation import (
    Allowed,
    NonEmptyStr,
    StrictBool,
    StringConstraints,
    check,
    settings,
)


@dataclass(frozen=True)
class LoggedCell:
    """What there is to log of a cell."""

    result: CellResult  # its row
    settings: Mapping[str, Any]  # the resolved settings that its run id is the hash of
    # its records in the order they were decoded; of a failed cell those it had
    generations: Sequence[Generation] = field(repr=False)
    folder: Path  # its own folder, which bears the note of what was logged
    # where it was decoded: commit, versions, machine; see ``measure.provenance``
    origin: Mapping[str, Any] = field(default_factory=dict)
    # score -> prompt id -> what the answer scored by itself
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)


class Sink(Protocol):
    """What a sink offers."""

    def take(self, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes results, or a whole table's rows; what cannot be sent brings a warning."""
        ...


sink: Registry[Callable[[Any, Path], Sink | None]] = Registry(
    "sink", "spec_bench.sinks", within="spec_bench.sinks"
)
"""What builds each sink from its part of the config and the experiment's folder, or says None where
it is off. Whoever builds raises a ``ValueError`` for settings that cannot be right.
"""


Project = Annotated[
    NonEmptyStr,
    StringConstraints(pattern=r"^[^/\\#?%:]{1,128}$"),
    Allowed("1 to 128 letters, none of / \\ # ? % : (a team is sink.wandb.entity)"),
]
"""W&B's own rule for a project's name."""
Entity = Annotated[
    NonEmptyStr, StringConstraints(pattern=r"^[^/\s]+$"), Allowed("a team's or a user's name")
]


@settings
class WandbSettings:
    """``sink.wandb``; meanings stand in ``conf/sink/default.yaml``."""

    enabled: StrictBool = False
    project: Project = "spec_bench"
    group: NonEmptyStr = "default"
    mode: Literal["online", "offline", "disabled"] = "offline"
    entity: Entity | None = None
    tags: tuple[NonEmptyStr, ...] | None = ()
    system_metrics: StrictBool = False


@settings
class SinkSettings:
    """``sink``; meanings stand in ``conf/sink/default.yaml``."""

    progress: StrictBool = True
    table: StrictBool = True
    wandb: WandbSettings = field(default_factory=WandbSettings)
    # settings of other packages' sinks, by name, as they were written
    more: dict[str, Any] = field(default_factory=dict)


def sink_settings(config: SinkSettings | Mapping[str, Any]) -> SinkSettings:
    """Checks the config group ``sink``. Raises ValueError: an unknown sink, or a wrong value."""
    if isinstance(config, SinkSettings) or not isinstance(config, Mapping):
        return config if isinstance(config, SinkSettings) else check(SinkSettings, config, "sink")
    ours = {each.name for each in fields(SinkSettings)} - {"more"}
    more = {name: value for name, value in config.items() if name not in ours and name in sink}
    asked = {name: value for name, value in config.items() if name not in more}
    return replace(check(SinkSettings, asked, "sink"), more=more)


def build_sinks(settings: SinkSettings, folder: Path) -> list[Sink]:
    """Builds the sinks that are on. Raises ValueError: settings that cannot be right."""
    asked = {"wandb": settings.wandb, **settings.more}
    built = [sink[name](value, folder) for name, value in asked.items()]
    return [each for each in built if each is not None]
