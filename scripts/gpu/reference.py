"""How fast plain decoding can be with torch alone: ``python3 scripts/gpu/reference.py``.

Greedy decoding of one Llama as a page of torch, in the manner of gpt-fast: one cache of fixed size,
one mask, joined products, a step that is one function of tensors, recorded as one graph. It shares
no code with the engine, so an iteration of ``decoder=ar`` may be held against it. Weights are
noise. ``compile`` has Inductor fuse it, ``autotune`` chooses among kernels too. A row of the table
is a model's sizes, dtype, way and tokens of a pass; those that are there are not measured again.
``--tiny`` rehearses on a CPU, where a step is called.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.gpu.probe import record_graph
from spec_bench.system.files import read_csv, write_csv

START, STEPS, TURNS = 512, 96, 5
FILE = "gpu-reference.csv"


class Sizes(NamedTuple):
    """A Llama's."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    inner: int
    vocab: int


SIZES = {
    "smollm2": Sizes(30, 576, 9, 3, 1536, 49152),
    "llama2_7b": Sizes(32, 4096, 32, 32, 11008, 32000),
    "tiny": Sizes(2, 64, 4, 2, 128, 512),
}
# sizes, dtype, way, tokens of a pass; what tells most comes first
PLAN = [
    ("smollm2", "float32", "eager", 1),
    ("llama2_7b", "bfloat16", "eager", 1),
    ("smollm2", "bfloat16", "eager", 1),
    ("smollm2", "float32", "eager", 4),
    ("smollm2", "float32", "compile", 1),
    ("llama2_7b", "bfloat16", "compile", 1),
    ("smollm2", "bfloat16", "compile", 1),
    ("llama2_7b", "bfloat16", "autotune", 1),
]
TINY = [("tiny", "float32", "eager", 1), ("tiny", "bfloat16", "eager", 4)]
MODES = {"compile": "default", "autotune": "max-autotune-no-cudagraphs"}


class Reference(nn.Module):
    """Plain decoding of one row: weights, cache and rotations."""

    cos: Tensor
    sin: Tensor
    cache: Tensor

    def __init__(self, sizes: Sizes, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.sizes, self.slots, self.width = sizes, slots, sizes.hidden // sizes.heads
        where: dict[str, Any] = {"dtype": dtype, "device": device}

        def noise(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.02 * torch.randn(*shape, **where), requires_grad=False)

        d, joined = sizes.hidden, (sizes.heads + 2 * sizes.key_heads) * self.width
        shapes = (d,), (joined, d), (d, sizes.heads * self.width)
        shapes += (d,), (2 * sizes.inner, d), (d, sizes.inner)  # type: ignore[assignment]
        self.table, self.head, self.last = noise(sizes.vocab, d), noise(sizes.vocab, d), noise(d)
        self.weights = nn.ParameterList(
            noise(*shape) for _ in range(sizes.layers) for shape in shapes
        )
        kept = sizes.layers, 2, 1, sizes.key_heads, slots, self.width
        self.register_buffer("cache", torch.zeros(kept, **where))
        turns = 10_000 ** (-torch.arange(0, self.width, 2) / self.width)
        angle = torch.arange(slots).unsqueeze(1) * turns
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], dim=1).to(**where))
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], dim=1).to(**where))

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Takes tokens [1, T] at places [T] to those that follow each."""
        hidden = embedding(tokens, self.table)
        seen = torch.arange(self.slots, device=places.device) <= places.unsqueeze(1)
        lowest = torch.finfo(hidden.dtype).min
        mask = torch.zeros_like(seen, dtype=hidden.dtype).masked_fill_(~seen, lowest)
        mask = mask.repeat(self.sizes.heads // self.sizes.key_heads, 1)[None, None]
        turn = self.cos[places][None, :, None], self.sin[places][None, :, None]
        for layer in range(self.sizes.layers):
            hidden = self._find_block(hidden, layer, places, mask, turn)
        return linear(rms_norm(hidden, self.last.shape, self.last), self.head).argmax(dim=-1)

    def _find_block(
        self, hidden: Tensor, layer: int, places: Tensor, mask: Tensor, turn: tuple[Tensor, Tensor]
    ) -> Tensor:
        first, joined, out, second, opened, down = self.weights[6 * layer : 6 * layer + 6]
        count, heads, key_heads = hidden.shape[1], self.sizes.heads, self.sizes.key_heads
        made = linear(rms_norm(hidden, first.shape, first), joined)
        made = made.unflatten(-1, (heads + 2 * key_heads, self.width))
        turning, value = made.split([heads + key_heads, key_heads], dim=2)
        turned = turning * turn[0] + turning.roll(self.width // 2, -1) * turn[1]
        query, key = turned.split([heads, key_heads], dim=2)
        keys, values = self.cache[layer]
        keys[:, :, places] = key.transpose(1, 2)
        values[:, :, places] = value.transpose(1, 2)
        query = query.transpose(1, 2).reshape(1, key_heads, -1, self.width)
        found = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        found = found.reshape(1, heads, count, self.width).transpose(1, 2).flatten(2)
        hidden = hidden + linear(found, out)
        gate, up = linear(rms_norm(hidden, second.shape, second), opened).chunk(2, dim=-1)
        return hidden + linear(silu(gate) * up, down)


def synchronise(device: torch.device) -> None:
    """Waits for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def as_graph(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Returns work on a GPU as a graph's replay; on a CPU the work."""
    return record_graph(work)[0].replay if device.type == "cuda" else work


@torch.inference_mode()
def measure(
    name: str, dtype: str, how: str, count: int, device: torch.device, steps: int
) -> dict[str, Any]:
    """Returns a row: the median time of a pass of ``count`` tokens."""
    torch.manual_seed(0)
    model = Reference(SIZES[name], START + steps + count + 8, getattr(torch, dtype), device)
    tokens = torch.zeros((1, count), dtype=torch.long, device=device)
    places = torch.arange(count, device=device) + START
    forward: Any = model
    if how in MODES:
        forward = torch.compile(model, fullgraph=True, dynamic=False, mode=MODES[how])

    def step() -> None:
        tokens.copy_(forward(tokens, places))
        places.add_(1)

    began = time.perf_counter()
    for _ in range(2):
        step()
    synchronise(device)
    first_s = time.perf_counter() - began
    run = as_graph(step, device)
    seconds = []
    for _ in range(TURNS):
        places.copy_(torch.arange(count, device=device) + START)
        synchronise(device)
        began = time.perf_counter()
        for _ in range(steps):
            run()
        synchronise(device)
        seconds.append((time.perf_counter() - began) / steps)
    second = statistics.median(seconds)
    read = sum(weight.nbytes for weight in model.parameters()) - model.table.nbytes
    return {
        "sizes": name,
        "dtype": dtype,
        "compile": how,
        "tokens": count,
        "ms": round(1e3 * second, 4),
        "weights_gb_s": round(read / second / 1e9, 1),
        "first_s": round(first_s, 1),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def main() -> int:
    """Measures what the table lacks; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the table")
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.tiny else "cuda")
    file = options.output / FILE
    rows: list[dict[str, Any]] = [*read_csv(file)]
    done = {(row["sizes"], row["dtype"], row["compile"], int(row["tokens"])) for row in rows}
    failed = 0
    for case in TINY if options.tiny else PLAN:
        if case in done:
            continue
        try:
            rows.append(measure(*case, device, 4 if options.tiny else STEPS))
        except Exception as error:  # as of a compiler; the others are worth having
            print(*case, f"{type(error).__name__}: {error}"[:300], flush=True)
            failed = 1
            continue
        print(rows[-1], flush=True)
        write_csv(file, rows, list(rows[0]))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main())
