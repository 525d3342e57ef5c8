"""Which files the repository has: by git, or in an unpacked archive all that there are."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE = {".venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis"}


def committed_files(folder="."):
    """Paths below a folder, from the root on, in order."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        return sorted(name for name in listed.split("\0") if name)
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in found if not MADE.intersection(path.parts))
