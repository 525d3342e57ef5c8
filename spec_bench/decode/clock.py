"""Divides a batch's wall time among its rows, and keeps each row's own latency.

The shares of all rows add up to the time that really passed. An iteration's seconds belong to the
rows that took part in it, in equal parts; a prefill's to the rows prefilled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spec_bench.records.types import Finish


class Timed(Protocol):
    """A row: something that finishes."""

    finish: Finish | None


@dataclass
class _RowTimes:
    """One row's seconds.

    Attributes:
        began_s: clock reading before its prefill.
        prefill_s: its share of the prefill.
        decode_s: its share of the iterations, before scaling to the synchronised total.
        ended_s: clock reading after its last token.
    """

    began_s: float
    prefill_s: float
    decode_s: float = 0.0
    ended_s: float = 0.0


class BatchClock:
    """Reads the clock around prefills and iterations; synchronises only where nothing is decoded.

    Args:
        now_s: reads the clock with the device synchronised.
        take_forward_s: (draft, target) seconds in forward passes since it was last called.
    """

    def __init__(
        self, now_s: Callable[[], float], take_forward_s: Callable[[], tuple[float, float]]
    ) -> None:
        self._now_s, self._take_forward_s = now_s, take_forward_s
        self._rows: dict[int, _RowTimes] = {}
        self._read_s = now_s()
        self._decode_s = self._draft_s = self._target_s = 0.0
        self._since_s = self._read_s

    def joined(self, rows: Sequence[Timed]) -> None:
        """These rows were prefilled since the last reading."""
        now_s = self._now_s()
        share_s = (now_s - self._read_s) / len(rows)
        for row in rows:
            self._rows[id(row)] = _RowTimes(self._read_s, share_s)
        self._take_forward_s()  # of the prefill: not part of decoding
        self._read_s = self._since_s = now_s

    def start(self) -> None:
        """Decoding starts now; a meter was started since the prefill."""
        self._read_s = self._since_s = self._now_s()

    def stepped(self, active: Sequence[Timed]) -> None:
        """An iteration of these rows is over; its verdict is on the host."""
        now_s = time.perf_counter()
        share_s = (now_s - self._read_s) / len(active)
        for row in active:
            times = self._rows[id(row)]
            times.decode_s += share_s
            if row.finish is not None:
                times.ended_s = now_s
        self._read_s = now_s

    def pause(self) -> None:
        """Decoding pauses for a prefill."""
        self._read_s = self._now_s()
        self._decode_s += self._read_s - self._since_s
        draft_s, target_s = self._take_forward_s()
        self._draft_s, self._target_s = self._draft_s + draft_s, self._target_s + target_s

    def stop(self) -> None:
        """Decoding is over."""
        self.pause()

    def seconds(self, row: Timed) -> tuple[float, float, float, float]:
        """(prefill, decode, draft, target) seconds of a row, once stopped."""
        read_s = sum(times.decode_s for times in self._rows.values())
        times = self._rows[id(row)]
        share = times.decode_s / read_s if read_s else 1 / len(self._rows)
        totals = (self._decode_s, self._draft_s, self._target_s)
        return (times.prefill_s, *(share * total for total in totals))  # type: ignore[return-value]

    def latency_s(self, row: Timed) -> float:
        """Seconds from the start of a row's prefill to its last token."""
        times = self._rows[id(row)]
        return times.ended_s - times.began_s
