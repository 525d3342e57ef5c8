"""Where things lie: the configuration folder, the embedded models, what identifies a model.

Knows the file system only; a model's name that is no folder is left for the hub.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import spec_bench
from spec_bench.configs import conf_dir
from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.engine.architectures import architecture

EMBEDDED = "embedded:"
_HEADS = "heads/"  # embedded:heads/NAME
_SAMPLE_BYTES = 1 << 20  # of a large weights file, this much from either end is hashed


config_dir = conf_dir


def model_path(name: str) -> str:
    """``embedded:NAME`` as a folder of the package; any other name as it is.

    Raises:
        ValueError: the package embeds no model of that name, a path-like name is no folder, or
            ``random:NAME`` no architecture.
    """
    if name.startswith(RANDOM):
        architecture(name)
        return name
    if name.startswith(EMBEDDED):
        root = Path(spec_bench.__file__).resolve().parent / "embedded"
        inside = name.removeprefix(EMBEDDED)
        folder = root / (inside if inside.startswith(_HEADS) else f"models/{inside}")
        if not (folder / "config.json").is_file():
            models = [found.parent.name for found in root.glob("models/*/config.json")]
            heads = [_HEADS + found.parent.name for found in root.glob(f"{_HEADS}*/config.json")]
            known = sorted(f"{EMBEDDED}{found}" for found in (*models, *heads))
            raise ValueError(
                f"unknown embedded model {name!r}; embedded: {', '.join(known) or '-'}"
            )
        return str(folder)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model folder {name!r} holds no config.json")
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ValueError(f"model folder {name!r} does not exist")
    return name


def fingerprint(name: str) -> str | None:
    """A short hash of a local model's config and weights; None for a hub id.

    Two models that once lay in the same folder are two models: their results must not be mixed.
    """
    digest = hashlib.sha256()
    if name.startswith(RANDOM):
        digest.update(json.dumps(architecture(name), sort_keys=True).encode())
        return digest.hexdigest()[:12]
    folder = Path(model_path(name))
    if not folder.is_dir():
        return None
    for file in sorted(folder.iterdir()):
        if file.suffix not in {".json", ".safetensors", ".bin", ".model"}:
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_SAMPLE_BYTES))
            if size > 2 * _SAMPLE_BYTES:
                stream.seek(-_SAMPLE_BYTES, 2)
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]
