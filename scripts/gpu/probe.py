"""What only a GPU can tell, in about ninety seconds: ``python3 scripts/gpu/probe.py``.

Needs torch alone. Says whether graphs can be recorded again once a pool's last graph is gone and
after a recording failed, what masked attention costs over long caches, what share of the memory's
bandwidth products of Llama-2-7B's shapes reach, and what a launch costs host and GPU. Results are
lines of ``name: value``, and rows of a CSV with ``--output FOLDER``.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.system.files import write_csv

GPU = torch.device("cuda")
LAYERS = 32
# Output and input features of Llama-2-7B's products, alone and fused.
PRODUCTS = {
    "q": (4096, 4096),
    "q, k, v": (12288, 4096),
    "gate": (11008, 4096),
    "gate, up": (22016, 4096),
    "down": (4096, 11008),
    "head": (32000, 4096),
}
Found = Iterator[tuple[str, object]]


def median_s(work: Callable[[], Any], repeats: int = 20) -> float:
    """Median seconds of a call, the device's work included."""
    seconds = []
    for number in range(repeats + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if number >= 3:  # the first calls set libraries up
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def record_graph(work: Callable[[], Any], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Records work as a graph; returns it, and what its replays overwrite."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        outputs = work()
    return graph, outputs


def tried(work: Callable[[], Any]) -> str:
    """Whether the work runs; the stream that was current is put back."""
    before = torch.cuda.current_stream()
    try:
        work()
        ended = "works"
    except RuntimeError as error:
        ended = f"fails: {' '.join(str(error).split())[:100]}"
    if torch.cuda.current_stream() != before:
        torch.cuda.set_stream(before)
        ended += "; left on the recording's stream"
    return ended


def graphs() -> Found:
    """What recordings leave behind."""
    weight, states = torch.randn(512, 512, device=GPU), torch.randn(2, 512, device=GPU)
    pool = torch.cuda.graph_pool_handle()
    graph = record_graph(lambda: states @ weight, pool)
    del graph
    gc.collect()
    yield "a pool after its last graph", tried(lambda: record_graph(lambda: states @ weight, pool))
    pool = torch.cuda.graph_pool_handle()
    yield "a recording that waits", tried(lambda: record_graph(lambda: states.sum().item(), pool))
    yield "the pool after that", tried(lambda: record_graph(lambda: states + 1, pool))
    yield "the default generator", tried(lambda: torch.rand(1, device=GPU))


def layers(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Attention as often as Llama-2-7B has layers."""
    for _ in range(LAYERS):
        scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attention() -> Found:
    """ms of 32 layers' attention: with a mask, with rows that are not aligned, without."""
    for heads, queries, slots in ((32, 1, 640), (32, 1, 4096), (8, 4, 4096), (8, 4, 32768)):
        for tokens in (1, 16):
            shape = {"dtype": torch.bfloat16, "device": GPU}
            query = torch.randn(1, heads, tokens * queries, 128, **shape)
            key, value = (torch.randn(1, heads, slots, 128, **shape) for _ in range(2))
            aligned = torch.zeros(1, 1, tokens * queries, slots, **shape)
            apart = torch.zeros(1, 1, tokens * queries, slots + 3, **shape)[..., :slots]
            for name, mask in (("masked", aligned), ("not aligned", apart), ("no mask", None)):
                with torch.inference_mode():
                    seconds = median_s(partial(layers, query, key, value, mask), 5)
                said = f"attention, {heads} heads, {slots} slots, {tokens} tokens, {name}, ms"
                yield said, round(1e3 * seconds, 3)


def bandwidth() -> float:
    """Bytes/s of a sum over 4 GiB."""
    buffer = torch.ones(2**30, device=GPU)
    return float(buffer.nbytes / median_s(buffer.sum, 10))


def products(bytes_per_s: float) -> Found:
    """Share of the measured bandwidth that replayed products reach."""
    for name, (out, inner) in PRODUCTS.items():
        weights = [torch.randn(out, inner, device=GPU, dtype=torch.bfloat16) for _ in range(8)]
        for tokens in (1, 4, 16, 64):
            states = torch.randn(tokens, inner, device=GPU, dtype=torch.bfloat16)
            graph, _ = record_graph(lambda: [linear(states, each) for each in weights])  # noqa: B023
            share = 8 * 2 * out * inner / median_s(graph.replay) / bytes_per_s
            yield f"{name}, {tokens} tokens, share of bandwidth", round(share, 3)


def launches() -> Found:
    """us of one small kernel."""
    ones = torch.ones(8, device=GPU)

    def thousand() -> None:
        for _ in range(1000):
            ones.add_(1)

    yield "launch by the host, us", round(1e3 * median_s(thousand, 5), 2)
    yield "kernel in a graph, us", round(1e3 * median_s(record_graph(thousand)[0].replay, 5), 2)


def found() -> Found:
    """Everything, the shortest first."""
    yield "torch", f"{torch.__version__}, CUDA {torch.version.cuda}"
    yield "device", torch.cuda.get_device_name()
    yield from graphs()
    yield from launches()
    bytes_per_s = bandwidth()
    yield "bandwidth of a sum, GB/s", round(bytes_per_s / 1e9)
    yield from products(bytes_per_s)
    yield from attention()


def main() -> int:
    """Prints and writes what was found as it comes; exit status 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, help="folder of gpu-probe.csv")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        return 2
    torch.backends.cuda.enable_cudnn_sdp(False)  # as the engine has it
    rows = []
    for name, value in found():
        print(f"{name}: {value}", flush=True)
        rows.append({"what": name, "value": value})
        if options.output:
            write_csv(options.output / "gpu-probe.csv", rows, ["what", "value"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
