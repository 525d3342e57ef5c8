"""What a target call costs as it grows: ``make bench-scaling``.

One random model, and in turn the size of the tree (1 to 64 nodes), the context (128 to 4,096
tokens), the batch (1 to 32 rows) and the vocabulary (2k to 128k); all else stays at the base point.
Each point is the median of repeated passes, interleaved over the points of a curve so that drift of
the machine hits all alike, and is given as a ratio to the curve's first point. Writes a CSV and a
figure, with the machine named by its hardware.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.core.draws import SeededSource
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import wait_for_device
from spec_bench.engine.products import store_weights_by_column
from spec_bench.engine.tree_pass import run_nodes
from spec_bench.system.files import write_csv
from spec_bench.tree.widths import IidPaths

BASE = {"nodes": 1, "context": 256, "batch": 1, "vocabulary": 32_000}
CURVES: dict[str, tuple[int, ...]] = {
    "nodes": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "context": (128, 256, 512, 1024, 2048, 4096),
    "batch": (1, 2, 4, 8, 16, 32),
    "vocabulary": (2_000, 8_000, 32_000, 128_000),
}
SETTINGS = SamplingSettings(1.0)


def model_of(vocab: int, options: argparse.Namespace) -> HuggingFaceModel:
    """A random Llama of the asked width and depth."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.width // 64),
        max_position_embeddings=8192,
    )
    device = torch.device(options.device)
    with torch.device(device):
        module = LlamaForCausalLM(config).to(getattr(torch, options.dtype)).eval()
    store_weights_by_column(module)
    return HuggingFaceModel(module, vocab, device)


def call(model: HuggingFaceModel, point: Mapping[str, int]) -> Callable[[], None]:
    """One target call at a point: a tree of so many nodes behind so much context, per row."""
    rows, nodes = point["batch"], point["nodes"]
    cache = model.allocate(rows, point["context"] + nodes + 1)
    root = torch.zeros(rows, dtype=torch.long, device=model.device)
    generators = [torch.Generator(model.device).manual_seed(row) for row in range(rows)]
    policy = IidPaths(nodes - 1, 1) if nodes > 1 else None
    shape, parents = (policy.shape, policy.parents) if policy else (TreeShape((), ()), None)
    tree = Tree(shape, root, parents=parents)
    if policy:
        flat = torch.zeros((rows, 1, 1, model.vocab_size), device=model.device)
        policy.grow_level(tree, flat.log_softmax(dim=-1), SeededSource(generators))
    lengths = [point["context"]] * rows

    @torch.inference_mode()
    def run() -> None:
        run_nodes(model, cache, tree, lengths, slice(0, nodes))
        wait_for_device(model.device)

    return run


def measure(name: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """One curve: a row for each value."""
    runs = {}
    base = model_of(BASE["vocabulary"], options)
    for value in CURVES[name]:
        point = {**BASE, name: value}
        model = model_of(value, options) if name == "vocabulary" else base
        runs[value] = call(model, point)
        runs[value]()
    seconds: dict[int, list[float]] = {value: [] for value in runs}
    for _ in range(options.repeats):
        for value, run in runs.items():
            start_s = time.perf_counter()
            run()
            seconds[value].append(time.perf_counter() - start_s)
    medians = {value: statistics.median(found) for value, found in seconds.items()}
    first = medians[CURVES[name][0]]
    return [
        {"curve": name, "value": value, "ms": 1e3 * median, "ratio": median / first}
        for value, median in medians.items()
    ]


def draw(rows: list[dict[str, object]], machine: str, path: Path) -> None:
    """Four panels, cost against size as a ratio to the first; none without pandas."""
    if find_spec("pandas") is None:
        return
    from matplotlib.figure import Figure

    from spec_bench.report.figures.style import figure_settings_applied, save_figure

    with figure_settings_applied():
        figure = Figure((9.6, 2.6), layout="constrained")
        axes = figure.subplots(1, len(CURVES))
        for axis, name in zip(axes, CURVES, strict=True):
            points = [(row["value"], row["ratio"]) for row in rows if row["curve"] == name]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=4)
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.set(ylim=(0, None), xlabel={"nodes": "tree nodes, root included"}.get(name, name))
        axes[0].set_ylabel("cost of a target call / first point")
        figure.suptitle(machine, fontsize=9)
        save_figure(figure, path.parent, path.stem, ("png",))


def machine_name(options: argparse.Namespace) -> str:
    """The hardware and the model, for the figure's title."""
    if options.device.startswith("cuda"):
        hardware = torch.cuda.get_device_name(options.device)
    else:
        cpu = next(
            (
                line.partition(":")[2].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")
            ),
            platform.processor(),
        )
        threads = torch.get_num_threads()
        hardware = f"{cpu}, {threads} thread{'s' if threads > 1 else ''}"
    return f"{hardware}; Llama {options.layers} x {options.width}, {options.dtype}"


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/scaling-cpu"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for name in CURVES:
        for row in measure(name, options):
            rows.append(row)
            print(f"{name:10} {row['value']:>7} {row['ms']:9.2f} ms {row['ratio']:6.2f} x")
    write_csv(options.out.with_suffix(".csv"), rows, list(rows[0]))
    draw(rows, machine_name(options), options.out.with_suffix(".png"))
    print(f"{options.out}.csv, {options.out}.png")


if __name__ == "__main__":
    main()
