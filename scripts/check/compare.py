"""Whether ``compare`` finds a slower decoder in real runs, and lets unchanged runs be.

    python scripts/check/compare.py                      # 10 + 10 pairs of runs, up to 40 minutes
    python scripts/check/compare.py --pairs 3 --minutes 5

Every run is a process of its own: four decoders of the embedded pair on one task, interleaved with
plain decoding. In the slowed runs every iteration of ``rsd_s`` waits until it has taken 1 / (1 -
SLOWED) of its time. Run 0 is set against run 1, run 1 against run 2, and so on, unchanged and
slowed; a pair of unchanged runs with any verdict but "no change shown" is a false alarm. Wants a
quiet machine. What is measured stays in ``outputs/compare_check``: the same command goes on, and
stops by itself before ``--minutes`` are over. Exit status 1 where it found too few or too much.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench import api
from spec_bench.decode.config import AnyDecoder, DecoderConfig
from spec_bench.report.comparison import ResultsComparison, compare_results
from spec_bench.system import files

CELLS = "[sd:3,spectr:2x3,rsd_c:2-2-1,rsd_s:3x3]"
SLOW = "rsd_s"
OUT = Path("outputs/compare_check")


def slow_down(decoder: str, share: float) -> None:
    """From now on every iteration of a decoder takes 1 / (1 - share) of its time."""
    build = DecoderConfig.build

    def built(self: DecoderConfig, *arguments: Any, **options: Any) -> AnyDecoder:
        made = build(self, *arguments, **options)
        if self.name == decoder:
            step = made.step

            def slower(active: Sequence[Any]) -> int:
                start = time.perf_counter()
                emitted = step(active)
                until = start + (time.perf_counter() - start) / (1 - share)
                while time.perf_counter() < until:
                    pass
                return emitted

            made.step = slower  # type: ignore[method-assign]
        return made

    DecoderConfig.build = built  # type: ignore[method-assign, assignment]


def run(folder: Path, options: argparse.Namespace) -> None:
    """One run, in this process."""
    if options.slowed:
        slow_down(SLOW, options.slowed)
    settings = [f"task={options.task}", f"prompts={options.prompts}", f"repeats={options.repeats}"]
    more = ["name=run", f"results={folder}", f"cells={CELLS}", "engine.threads=1"]
    api.run(*settings, *more, "generation.max_new_tokens=32")


def measured(folder: Path, options: argparse.Namespace, slowed: float, left_s: float) -> bool:
    """Has a process make one run; False where it did not finish in time."""
    if (folder / "done").exists():
        return True
    told = [f"--{name}={getattr(options, name)}" for name in ("task", "prompts", "repeats")]
    command = [sys.executable, __file__, "--one", str(folder), f"--slowed={slowed}", *told]
    try:
        subprocess.run(command, check=True, timeout=max(1.0, left_s), stdout=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    files.write_text(folder / "done", "")
    return True


def verdicts(found: ResultsComparison) -> list[str]:
    """What a comparison says got worse or better."""
    changed = [*found.select_changes("regression"), *found.select_changes("improvement")]
    return [f"{each.cell.split(',')[0]} {each.column.name} {each.verdict}" for each in changed]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--task", default="xsum")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slowed", type=float, default=0.15, help="share of its speed")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(options.one, options)
        return 0
    ends = time.monotonic() + 60 * options.minutes
    alarms, hits, tried = 0, 0, 0
    for pair in range(options.pairs):
        names = [("plain", pair, 0.0), ("plain", pair + 1, 0.0), ("slow", pair, options.slowed)]
        folders = [options.out / f"{kind}-{number}" for kind, number, _ in names]
        if not all(
            measured(folder, options, slowed, ends - time.monotonic())
            for folder, (_, _, slowed) in zip(folders, names, strict=True)
        ):
            print(f"stopped after {tried} pairs: {options.minutes:g} minutes are over")
            break
        before, same, slower = (folder / "run" for folder in folders)
        tried += 1
        false = verdicts(compare_results(before, same))
        true = verdicts(compare_results(before, slower))
        alarms += bool(false)
        hits += any(each.startswith(SLOW) and "speedup regression" in each for each in true)
        print(f"pair {pair}: unchanged: {false or 'nothing'}; slowed: {true or 'nothing'}")
    print(f"{tried} pairs: {SLOW} slowed by {options.slowed:.0%} found in {hits}; {alarms} alarms")
    return int(not tried or hits < 0.9 * tried or alarms > 0.1 * tried)


if __name__ == "__main__":
    sys.exit(main())
