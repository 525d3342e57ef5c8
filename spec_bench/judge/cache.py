"""Judgements on disk by what was asked, so that asking again costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4


class Judgements:
    """A folder with one file a judgement.

    Only replies with a rating are kept: what failed is asked again.

    Args:
        folder: made when the first judgement comes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, payload: Mapping[str, Any]) -> float | None:
        """The rating that this request was given before."""
        path = self._path(payload)
        return (
            float(json.loads(path.read_text(encoding="utf-8"))["rating"]) if path.exists() else None
        )

    def put(self, payload: Mapping[str, Any], reply: str, rating: float) -> None:
        """Keeps a rating with the reply it stands in."""
        content = {"model": payload["model"], "rating": rating, "reply": reply}
        write_whole(self._path(payload), json.dumps(content, indent=1) + "\n")

    def _path(self, payload: Mapping[str, Any]) -> Path:
        """Named by a hash of model, prompt and the reply's limits."""
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
