"""The lines of many generations as arrays."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[Any]


class MeasuredLines:
    """Columns of lines, and what ``Generation`` makes of its own, as arrays (lines,) or NaN."""

    delivered = property(lambda self: self.tokens)
    calls = cached_property(lambda self: _lengths(self._list("step_accepted")))
    accepted = property(lambda self: _sums(self.calls, self._of("accepted")))
    walked = property(lambda w: _sums(w.calls, np.minimum(w._of("accepted") + 1, w._of("depth"))))
    layers = property(lambda self: _sums(self.calls, _lengths(self._widths)))
    beams = property(lambda w: _sums(w.calls, _sums(_lengths(w._widths), _flat(w._widths))))
    _widths = property(lambda self: self._list("step_widths").flatten())

    def __init__(self, lines: pa.Table) -> None:
        self._lines = lines
        self._made: dict[tuple[Any, ...], Array] = {}

    def __getattr__(self, name: str) -> Array:
        if name not in self._lines.column_names:
            raise AttributeError(name)
        self.__dict__[name] = found = self._lines[name].to_numpy()
        return found

    def sums(self, *of: Callable[[Any], Any]) -> Array:
        """Returns what each line adds to the two sums of a metric, (lines, 2)."""
        if of not in self._made:
            both = np.broadcast_arrays(self.repeat, *(each(self) for each in of))[1:]
            self._made[of] = np.stack(both, axis=1).astype(np.float64)
        return self._made[of]

    @property
    def decoded(self) -> Array:
        """Tokens without those of a server's first chunk."""
        chunks = self._list("served_tokens")
        counts = _lengths(chunks)
        first = np.zeros(len(chunks), np.int64)
        first[counts > 0] = _flat(chunks)[(counts.cumsum() - counts)[counts > 0]]
        return np.asarray(self.tokens - first)

    def _list(self, name: str) -> pa.ListArray:
        return self._lines[name].combine_chunks()

    def _of(self, name: str) -> Array:
        return _flat(self._list(f"step_{name}"))


def _flat(lists: pa.ListArray) -> Array:
    return np.asarray(lists.flatten().to_numpy())


def _lengths(lists: pa.ListArray) -> Array:
    return np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _sums(lengths: Array, values: Array) -> Array:
    """Sums of parts of these lengths."""
    sums = np.concatenate([[0], values.cumsum(dtype=np.int64)])
    ends = lengths.cumsum()
    return np.asarray(sums[ends] - sums[ends - lengths])
