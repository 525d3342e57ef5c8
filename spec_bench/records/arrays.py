"""Lines of many generations as arrays."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[Any]


class GenerationArrays:
    """Arrays (lines,) of the lines' columns and of ``Generation``'s properties; NaN if unknown."""

    delivered = property(lambda self: self.tokens)
    decoded = property(lambda self: self.tokens_in_decode_s)  # the former name, for one version
    calls = cached_property(lambda self: _get_list_lengths(self._get_list_column("step_accepted")))
    accepted = property(lambda self: _sum_each_list(self.calls, self._get_step_values("accepted")))
    walked = property(
        lambda w: _sum_each_list(
            w.calls, np.minimum(w._get_step_values("accepted") + 1, w._get_step_values("depth"))
        )
    )
    layers = property(lambda self: _sum_each_list(self.calls, _get_list_lengths(self._widths)))
    beams = property(
        lambda w: _sum_each_list(
            w.calls, _sum_each_list(_get_list_lengths(w._widths), _flatten_lists(w._widths))
        )
    )
    _widths = property(lambda self: self._get_list_column("step_widths").flatten())

    def __init__(self, lines: pa.Table) -> None:
        self._lines = lines
        self._arrays_by_terms: dict[tuple[Any, ...], Array] = {}

    def __getattr__(self, name: str) -> Array:
        if name not in self._lines.column_names:
            raise AttributeError(name)
        self.__dict__[name] = values = self._lines[name].to_numpy()
        return values

    def compute_line_terms(self, *terms: Callable[[Any], Any]) -> Array:
        """Computes the terms of a metric's sums for each line, (lines, terms), and caches them."""
        if terms not in self._arrays_by_terms:
            arrays = np.broadcast_arrays(self.repeat, *(term(self) for term in terms))[1:]
            self._arrays_by_terms[terms] = np.stack(arrays, axis=1).astype(np.float64)
        return self._arrays_by_terms[terms]

    @property
    def tokens_in_decode_s(self) -> Array:
        """Number of tokens of each line, without those of a server's first chunk."""
        chunks = self._get_list_column("served_tokens")
        counts = _get_list_lengths(chunks)
        first_sizes = np.zeros(len(chunks), np.int64)
        first_sizes[counts > 0] = _flatten_lists(chunks)[(counts.cumsum() - counts)[counts > 0]]
        return np.asarray(self.tokens - first_sizes)

    def _get_list_column(self, name: str) -> pa.ListArray:
        return self._lines[name].combine_chunks()

    def _get_step_values(self, name: str) -> Array:
        return _flatten_lists(self._get_list_column(f"step_{name}"))


def _flatten_lists(lists: pa.ListArray) -> Array:
    return np.asarray(lists.flatten().to_numpy())


def _get_list_lengths(lists: pa.ListArray) -> Array:
    return np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _sum_each_list(lengths: Array, values: Array) -> Array:
    """Sums consecutive parts of ``values``; ``lengths`` are the lengths of the parts."""
    sums = np.concatenate([[0], values.cumsum(dtype=np.int64)])
    ends = lengths.cumsum()
    return np.asarray(sums[ends] - sums[ends - lengths])
