"""Speeds up the products with a model's matrices on a CPU: packs them, or stores them by column."""

import json
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from spec_bench.engine.fused_linear import fuse_linear_groups
from spec_bench.system import files
from spec_bench.system.processor import read_cpu_model

LEAST_BYTES = 1 << 26  # of all matrices together; fewer stay in a cache
_LAYOUT = 8  # rows that a matrix is packed for
SMALLEST = 2**19  # 2 MiB of float32, more than a core's cache; laid by columns less gains nothing


# Ways to multiply by a matrix, for each number of input rows. The fastest depends on processor,
# dtype and number of rows, so it is measured once for each and stored in the cache folder.
PLAIN, PACKED, PADDED = "plain", "packed", "padded"  # padded: packed, filled up to four rows
_FULL = 4
ROWS = (1, 2, 3, 4, 8, 16)  # measured numbers of rows; others use the next larger, or the last
Ways = tuple[str, ...]
"""The way for each of ``ROWS``."""
_SAMPLE_BYTES = 1 << 27  # of matrices that are multiplied to measure; more than caches hold
_REPEATS = 4
_GAIN = 0.95  # a way must take less than this share of a plain product's time


class PackedLinear(nn.Linear):
    """A linear layer with a packed copy of its matrix. If no input is multiplied plainly,
    ``weight`` keeps its shape but not its values.
    """

    packed: Tensor
    ways: Ways

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:  # as a head that is trained needs it
            return linear(input, dense_weight(self), self.bias)
        rows = input.reshape(-1, self.in_features)
        method = self.ways[bisect_left(ROWS, min(len(rows), ROWS[-1]))]
        if method == PLAIN:
            return linear(input, self.weight, self.bias)
        output = _multiply_packed(rows, self.packed, self.bias, method)
        return output.view(*input.shape[:-1], self.out_features)


def _multiply_packed(rows: Tensor, packed: Tensor, bias: Tensor | None, method: str) -> Tensor:
    """Multiplies rows [N, in] by a packed matrix; returns [N, out]."""
    count = len(rows)
    if method == PADDED:
        rows = pad(rows, (0, 0, 0, max(0, _FULL - count)))
    output = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return output[:count]


def pack_linear_layers(module: nn.Module, *, join_groups: bool = False) -> Ways:
    """Packs the matrices of a large model on a CPU, in place, if that is faster for some number of
    rows. With ``join_groups`` a group's matrices are packed as one. Returns the way for each of
    ``ROWS``; () if nothing was considered.

    A matrix that is used elsewhere in the model, such as by the embedding, also keeps its values.
    """
    if not torch.backends.mkldnn.is_available():
        return ()
    layers: list[Any] = [p for p in module.modules() if type(p) is nn.Linear and _can_pack(p)]
    if not layers or sum(layer.weight.nbytes for layer in layers) < LEAST_BYTES:
        return ()
    use_counts = Counter(id(w) for part in module.modules() for w in part._parameters.values())
    multiply_used = {layer for layer in layers if use_counts[id(layer.weight)] > 1}
    if join_groups:
        fuse_linear_groups(module)
    groups = dict.fromkeys(getattr(layer, "whole", (layer,))[0] for layer in layers)
    methods = find_fastest_ways([layer.weight for layer in groups])
    size = sum(layer.weight.nbytes for layer in groups)
    if PLAIN in methods and 2 * size > read_available_memory_bytes():  # no room for both
        methods = tuple(PACKED if method == PLAIN else method for method in methods)
    for layer in groups if set(methods) != {PLAIN} else ():
        layer.packed = _pack_weight(layer.weight)
        layer.ways = methods
        layer.__class__ = PackedLinear
    for layer in {*layers, *groups} - multiply_used if PLAIN not in methods else ():
        nan_weight = torch.full((), torch.nan, dtype=layer.weight.dtype).expand(layer.weight.shape)
        layer.weight = nn.Parameter(nan_weight, requires_grad=False)
    return methods


def read_available_memory_bytes() -> int:
    """Returns the available bytes of memory."""
    from psutil import virtual_memory  # which a machine with torch and transformers may lack

    return int(virtual_memory().available)


def _pack_weight(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _LAYOUT)


def find_fastest_ways(weights: Sequence[Tensor]) -> Ways:
    """Finds the fastest way to multiply by matrices of these sizes and dtypes on this machine, for
    each of ``ROWS``. Measures once, in less than a second, and stores the result.
    """
    sizes = sorted({(*weight.shape, str(weight.dtype)) for weight in weights})
    key = [sizes, torch.get_num_threads(), torch.__version__, read_cpu_model()]
    cache_file = files.get_cache_folder() / "products" / f"{files.hash_json(key, 16)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        stored_ways = tuple(json.loads(cache_file.read_bytes())["ways"])
        if len(stored_ways) == len(ROWS) and {PLAIN, PACKED, PADDED}.issuperset(stored_ways):
            return stored_ways
    milliseconds = measure_ways_ms(weights)
    methods = tuple(_get_fastest_way(times) for times in milliseconds)
    with suppress(OSError):  # without a memory it is measured again
        files.write_redacted_json(
            cache_file,
            {
                "ways": methods,
                "rows": ROWS,
                "milliseconds": milliseconds,
            },
        )
    return methods


def _get_fastest_way(milliseconds: Mapping[str, float]) -> str:
    best = min(milliseconds, key=milliseconds.__getitem__)
    return best if milliseconds[best] < _GAIN * milliseconds[PLAIN] else PLAIN


def measure_ways_ms(weights: Sequence[Tensor]) -> list[dict[str, float]]:
    """Measures, for each of ``ROWS``, the milliseconds of every way on some of the matrices: the
    sum of each matrix's minimum in a few alternating turns. A busy machine disturbs every turn, but
    seldom the same short product in all of them.
    """
    sample: list[Tensor] = []
    for weight in weights:
        if sum(tensor.nbytes for tensor in sample) < _SAMPLE_BYTES:
            sample.append(weight.detach())
    packed = [_pack_weight(weight) for weight in sample]
    results = []
    with torch.inference_mode():
        for count in ROWS:
            inputs = [torch.ones(count, w.shape[1], dtype=w.dtype) for w in sample]
            best_ms: dict[str, list[float]] = {}
            for method in (PLAIN, PACKED, *[PADDED] * (count < _FULL)) * _REPEATS:
                turn_ms = []
                for rows, weight, packed_weight in zip(inputs, sample, packed, strict=True):
                    start_s = time.perf_counter()
                    if method == PLAIN:
                        linear(rows, weight)
                    else:
                        _multiply_packed(rows, packed_weight, None, method)
                    turn_ms.append(1e3 * (time.perf_counter() - start_s))
                best_ms[method] = [*map(min, best_ms.get(method, turn_ms), turn_ms)]
            results.append({method: sum(times) for method, times in best_ms.items()})
    return results


def format_product_ways(ways: Ways) -> str:
    """Formats the ways for a result row, such as ``plain 1-3, packed 4-``; "" if there are none."""
    pairs = zip(ways, ROWS, strict=True) if ways else ()
    runs = [
        (method, [rows for _, rows in group]) for method, group in groupby(pairs, itemgetter(0))
    ]
    texts = [f"{method} {rows[0]}-{rows[-1]}" for method, rows in runs]
    return ", ".join(texts).removesuffix(str(ROWS[-1]))


def dense_weight(layer: Any) -> Tensor:
    """Returns the matrix [out, in] of a linear layer, packed or not."""
    is_emptied = isinstance(layer, PackedLinear) and PLAIN not in layer.ways
    return layer.packed.to_dense() if is_emptied else layer.weight


def _can_pack(layer: nn.Linear) -> bool:
    """Returns whether this layer has a plain matrix on the CPU, and no hooks."""
    halves = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    fits = _is_plain_on_cpu(layer.weight, torch.float32, halves)
    return fits and "forward" not in vars(layer) and not layer._forward_hooks


def _is_plain_on_cpu(weight: Tensor, *dtypes: torch.dtype) -> bool:
    return type(weight.data) is Tensor and weight.is_cpu and weight.dtype in dtypes


def store_weights_by_column(module: nn.Module) -> int:
    """Stores the large float32 matrices of a model's linear layers by column, in place; returns
    their number.

    For the 4 to 15 tokens of a tree MKL multiplies up to two times slower by a matrix stored by row
    than by one stored by column. A single token and a prompt take the same time either way; 2 or 3
    tokens take a quarter more by column. Values do not change, only the rounding of products. A
    matrix shared with the embedding stays shared. Does nothing off the CPU, without MKL, or to a
    split model.
    """
    if not torch.backends.mkl.is_available():
        return 0
    weights = {part.weight for part in module.modules() if isinstance(part, nn.Linear)}
    large = [
        weight
        for weight in weights
        if _is_plain_on_cpu(weight, torch.float32)
        and weight.is_contiguous()
        and weight.numel() >= SMALLEST
    ]
    for weight in large:
        weight.data = weight.data.t().contiguous().t()
    return len(large)
