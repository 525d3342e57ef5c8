"""Who decodes a job's cells: models in this process (``models``) or a server (``served``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.session import Session


class Backend(ABC):
    """Gives cells their decoders.

    Attributes:
        vocabulary: tokens that the target knows; ids of records must lie below.
    """

    vocabulary: int

    @abstractmethod
    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds each cell's decoder and warms it up; one that cannot be has failed.

        Raises:
            ValueError: a prompt does not fit; nothing is decoded.
        """

    @abstractmethod
    def ran_with(self, session: Session) -> dict[str, Any]:
        """What only those who decode tell: fields of ``CellFacts``."""

    def finish(self, session: Session) -> None:  # noqa: B027 - most have nothing to do
        """Looks at what was decoded, before results are collected."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Ends what was opened."""
