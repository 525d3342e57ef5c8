"""What a sink is: it is handed a job's results once they are on disk.

    @sink("mail")
    def build_mail(config, folder):
        return Mail(config["to"])

``sink.mail`` of the config is then what ``build_mail`` is given; another package names the module
as an entry point of ``spec_bench.sinks``. The CSV, the progress bar and the table on the terminal
are no sinks in this sense: they are always there or a matter of one word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from spec_bench.records.types import CellResult, Generation
from spec_bench.settings.registry import Registry


@dataclass(frozen=True)
class LoggedCell:
    """What there is to log of a cell."""

    result: CellResult  # its row
    settings: Mapping[str, Any]  # the resolved settings that its run id is the hash of
    # its records in the order they were decoded; of a failed cell those it had
    generations: Sequence[Generation] = field(repr=False)
    folder: Path  # its own folder, which bears the note of what was logged


class Sink(Protocol):
    """What a sink offers."""

    def take(self, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes a job's results and the table's rows of its pair and task; what cannot be sent
        brings a warning and loses nothing.
        """
        ...


sink: Registry[Callable[[Any, Path], Sink | None]] = Registry(
    "sink", "spec_bench.sinks", within="spec_bench.sinks"
)
"""What builds each sink from its part of the config and the experiment's folder, or says None where
it is off. Whoever builds raises a ``ValueError`` for settings that cannot be right.
"""
