"""Whether a changed byte of any file that a model is made of is noticed, whatever hides it.

    python scripts/check/model_files.py                   # 500 changes of ten kinds of files
    python scripts/check/model_files.py --changes 40 --seed 1

Each change is one byte at a position drawn evenly over a file's. It is written in place, by a file
that takes the old one's place, or through a map of memory. Size and times are as before, as far as
a user can set them. Digests are remembered from the first moment on, which is harder than it is for
a user: files that were just written are read again. Exit status: 1 where a change was missed.
"""

import argparse
import mmap
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.jobs.config.model_files import compute_file_digests
from spec_bench.system import file_digests

KINDS = {  # file: bytes
    "config.json": 800,
    "model-00001-of-00002.safetensors": 6 << 20,
    "parts/model-00002-of-00002.safetensors": 3 << 20,
    "pytorch_model.bin": 5 << 20,
    "medusa_lm_head.pt": 4 << 20,
    "model.gguf": 3 << 20,
    "tokenizer.json": 2 << 20,
    "tokenizer.model": 500_000,
    "merges.txt": 400_000,
    "vocab.txt": 200_000,
    "chat_template.jinja": 3_000,
    "additional_chat_templates/tools.jinja": 2_000,
}
INDEX = '{"weight_map": {"a": "parts/model-00002-of-00002.safetensors"}}'
WAYS = ("in place", "renamed", "mapped")
_TICK_S = 0.02  # times of a file system are no finer than some milliseconds


def make_model(folder: Path, random: Random) -> None:
    """Writes a folder with a file of each kind."""
    for name, size in KINDS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}" if name == "config.json" else random.randbytes(size))
    (folder / "model.safetensors.index.json").write_text(INDEX)


def change_byte(path: Path, position: int, way: str) -> None:
    """Changes one byte of a file, and leaves its size and its times as they were."""
    before = path.stat()
    times = (before.st_atime_ns, before.st_mtime_ns)
    if way == "renamed":
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        other = path.with_name(f".{path.name}")
        other.write_bytes(data)
        os.utime(other, ns=times)
        other.replace(path)
        return
    with path.open("r+b") as stream:
        if way == "mapped":
            with mmap.mmap(stream.fileno(), 0) as mapped:
                mapped[position] ^= 1
        else:
            stream.seek(position)
            byte = stream.read(1)[0]
            stream.seek(position)
            stream.write(bytes([byte ^ 1]))
    os.utime(path, ns=times)


def count_missed(folder: Path, changes: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Counts changes, and those that were missed, by kind of file and way."""
    random = Random(seed)
    make_model(folder, random)
    names = sorted(KINDS)
    tried: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for number in range(changes):
        name = names[number % len(names)]
        path = folder / name
        way = random.choice(WAYS)
        before = compute_file_digests(str(folder))
        time.sleep(_TICK_S)
        change_byte(path, random.randrange(path.stat().st_size), way)
        after = compute_file_digests(str(folder))
        changed = {each for each in before if before[each] != after[each]}
        tried[f"{name}, {way}"] += 1
        missed[f"{name}, {way}"] += changed != {name}
    return tried, missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all changes, prints what came of them; the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    file_digests.SETTLED_S = -1.0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPEC_BENCH_CACHE"] = f"{folder}/cache"
        tried, missed = count_missed(Path(folder) / "model", options.changes, options.seed)
    for place in sorted(tried):
        print(f"{place}: {tried[place]} changes, {missed[place]} missed")
    print(f"{tried.total()} changes, {missed.total()} missed")
    return int(missed.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
