"""All that wants a GPU, in parts of under eight minutes: ``python3 scripts/gpu/bench.py all``.

Each part is a command of its own (``python3 scripts/gpu/bench.py`` lists them) and needs a python
with torch and transformers, nothing else: no environment, no weights, no network. A part that is
not over after ``LIMIT_S`` is ended; what it measured until then stands in its file. Where the GPU
is one of those that ``spec_bench.measure.bound`` knows, what is expected stands beside what is
measured. ``--tiny`` rehearses on a CPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
OUT = SCRIPTS.parent / "results" / "benchmarks"
LIMIT_S = 480

_PAIR = ["gpu/random_pair.py", "--prompts", "4"]
_ON_CPU = ["--device", "cpu", "--dtypes", "float32", "--prompts", "1", "--new-tokens", "4"]
_TINY_SCALING = ["--width", "64", "--layers", "1", "--repeats", "1"]


def parts(out: Path = OUT) -> dict[str, tuple[list[str], list[str]]]:
    """By name: a script with its arguments, and those of a rehearsal on a CPU.

    Args:
        out: where tables go.
    """
    found = {
        "tokens": (
            ["gpu/check.py", "--output", str(out), "--compile", "none", "static"],
            ["gpu/check.py", "--output", str(out), "--compile", "none", "static", *_ON_CPU],
        ),
    }
    pairs = (("llama2_7b", "llama_tiny"), ("llama2_13b", ""), ("opt_30b", ""))
    for target, tiny in pairs:
        for how in ("static", "none"):
            file = ["--output", str(out / f"random-{target}-{how}.csv"), "--compile", how]
            rehearsed = [_PAIR[0], "--tiny", "--targets", tiny, *file, "--new-tokens", "4"]
            name = f"{target}-{how}"
            found[name] = [*_PAIR, "--targets", target, *file], rehearsed if tiny else []
    energy = ["gpu/energy.py", "--output", str(out / "gpu-energy.csv")]
    heads = ["gpu/heads.py", "--output", str(out)]
    scaling = ["bench/scaling.py", "--out", str(out / "scaling-gpu")]
    found["energy"] = energy, [*energy, "--tiny"]
    found["heads"] = heads, [*heads, "--tiny"]
    found["scaling"] = (
        [*scaling, "--device", "cuda", "--dtype", "bfloat16", "--width", "4096"],
        [*scaling, *_TINY_SCALING],
    )
    return found


def run(name: str, out: Path, limit_s: float, *, tiny: bool) -> bool:
    """Runs a part for at most that long; whether it ended well."""
    command = parts(out)[name][tiny]
    print(f"== {name}: {' '.join(command)}", flush=True)
    start_s = time.monotonic()
    try:
        script, *given = command
        done = subprocess.run(
            [sys.executable, "-u", str(SCRIPTS / script), *given], timeout=limit_s
        )
        said = "done" if done.returncode == 0 else f"status {done.returncode}"
    except subprocess.TimeoutExpired:
        said = f"ended after {limit_s:.0f} s"
    print(f"== {name}: {said}, {time.monotonic() - start_s:.0f} s", flush=True)
    return said == "done"


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists the parts, or runs those that are named; exit status 1 where one did not end well."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help="names, or all; none lists them")
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    parser.add_argument("--out", type=Path, default=OUT, help="where tables go, such as $OUT")
    parser.add_argument("--minutes", type=float, default=1e6, help="for all parts together")
    options = parser.parse_args(arguments)
    ends_s = time.monotonic() + 60 * options.minutes
    known = {name: each for name, each in parts().items() if each[options.tiny]}
    if not options.parts:
        for name, each in known.items():
            print(f"{name}: {' '.join(each[options.tiny])}")
        return 0
    asked = list(known) if options.parts == ["all"] else options.parts
    if unknown := [name for name in asked if name not in known]:
        print(f"unknown part {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    ended = []
    for name in asked:  # all of them, whatever one says
        limit_s = min(LIMIT_S, ends_s - time.monotonic())
        if limit_s < 30:
            print(f"== {name}: no time left", flush=True)
        ended.append(limit_s >= 30 and run(name, options.out, limit_s, tiny=options.tiny))
    return int(not all(ended))


if __name__ == "__main__":
    sys.exit(main())
