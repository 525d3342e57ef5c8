"""A pair's models as files: where they are, what identifies them, how large they are.

Knows the file system and shapes; no weights are read, and a name that is not a folder is left to
the hub.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import spec_bench
from spec_bench.engine.architectures import ARCHITECTURES, read_random_architecture
from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.engine.model_spec import refuse_unreadable_weights
from spec_bench.system.errors import UsageError
from spec_bench.system.file_digests import hash_file_with_cache
from spec_bench.system.files import hash_json
from spec_bench.system.hub import probe_hub_and_set_offline
from spec_bench.system.model_cache import (
    find_gguf,
    get_converted_gguf_path,
    get_fetched_model_path,
    has_model_config,
)

EMBEDDED = "embedded:"
FETCHED = "fetched:"  # by a make target of the same name, or of that before a slash
_HEADS = "heads/"  # embedded:heads/NAME
_SAMPLE_BYTES = 1 << 20  # of a large weights file, this much from either end is hashed
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"})
_DOCUMENTS = frozenset({".md", ".log", ".out", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg"})
_PAPERS = ("LICENSE", "NOTICE", "README", "events.out.")  # how names of documents begin


def resolve_or_convert_model(name: str) -> str:
    """Returns the folder of ``embedded:NAME`` in the package, of ``fetched:NAME`` in the cache, and
    of a GGUF file, which is converted first unless it was before; any other name as it is. Raises
    UsageError: the package embeds no model of that name, it has not been fetched or cannot be
    converted, a path-like name is no folder, or ``random:NAME`` no architecture.
    """
    if name.startswith(RANDOM):
        read_random_architecture(name)
        return name
    if name.startswith(EMBEDDED):
        root = Path(spec_bench.__file__).resolve().parent / "embedded"
        inside = name.removeprefix(EMBEDDED)
        folder = root / (inside if inside.startswith(_HEADS) else f"models/{inside}")
        if not (folder / "config.json").is_file():
            models = [config.parent.name for config in root.glob("models/*/config.json")]
            heads = [_HEADS + config.parent.name for config in root.glob(f"{_HEADS}*/config.json")]
            choices = sorted(f"{EMBEDDED}{model}" for model in (*models, *heads))
            raise UsageError(f"unknown embedded model {name!r}; embedded: {', '.join(choices)}")
        return str(folder)
    if name.startswith(FETCHED):
        folder = get_fetched_model_path(name.removeprefix(FETCHED))
        if not has_model_config(folder):
            target = name.removeprefix(FETCHED).split("/")[0]
            raise UsageError(f"{name!r} is not on this machine yet: make {target}")
        return str(folder)
    path = Path(name).expanduser()
    if (file := find_gguf(path)) and not (path / "config.json").is_file():
        folder = get_converted_gguf_path(file)
        if not has_model_config(folder):
            from spec_bench.engine.gguf_conversion import convert_gguf_file

            convert_gguf_file(file, folder)
        return str(folder)
    if path.is_dir():
        if not (path / "config.json").is_file():
            refuse_unreadable_weights(name, {})
            raise UsageError(f"model folder {name!r} holds no config.json")
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"model folder {name!r} does not exist")
    return name


def compute_sampled_fingerprint(name: str) -> str | None:
    """Hashes a local model's config and weights, of large files both ends; None for a hub id. Two
    models that were once in the same folder are two models. Raises UsageError, naming a file that
    cannot be read.
    """
    digest = hashlib.sha256()
    if name.startswith(RANDOM):
        digest.update(json.dumps(read_random_architecture(name), sort_keys=True).encode())
        return digest.hexdigest()[:12]
    folder = Path(resolve_or_convert_model(name))
    if not folder.is_dir():
        return None
    for file in sorted(folder.iterdir()):
        if file.suffix not in {".json", ".safetensors", ".bin", ".model"}:
            continue
        if file.exists() and not file.is_file():  # opening a pipe would wait for ever
            raise UsageError(f"model {name!r}: {str(file)!r} is no file")
        try:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(_SAMPLE_BYTES))
                if size > 2 * _SAMPLE_BYTES:
                    stream.seek(-_SAMPLE_BYTES, 2)
                digest.update(stream.read(_SAMPLE_BYTES))
        except OSError as error:
            raise _make_read_error(name, file, error) from None
    return digest.hexdigest()[:12]


Digests = Mapping[str, str]
"""SHA-256 of all bytes of each file that a model is made of, by its path in the model's folder."""


def compute_file_digests(name: str, with_weights: bool = True) -> Digests:
    """Reads the digests of a local model's files, of those ``with_weights`` too or of the others
    alone; none of a hub id, which its commit identifies. Raises ValueError: a file cannot be read.
    """
    if name.startswith(RANDOM):
        return {"config.json": hash_json(read_random_architecture(name), 64)}
    folder = Path(resolve_or_convert_model(name))
    if not folder.is_dir():
        return {}
    digests = {}
    for file in _list_model_files(folder):
        if with_weights or file.suffix not in _WEIGHTS:
            try:
                digests[os.path.relpath(file, folder)] = hash_file_with_cache(file)
            except OSError as error:
                raise _make_read_error(name, file, error) from None
    return digests


def find_changed_tokenizer_file(name: str, old_digests: Digests) -> Path | None:
    """Finds a file of a local model that its tokenizer may be made of and whose digest is not the
    old one; None where all are as they were, and of a hub id. Weights and chat templates make no
    text of token ids.
    """
    if "commit" in old_digests:
        return None
    new_digests = compute_file_digests(name, with_weights=False)
    for file in {**old_digests, **new_digests}:
        makes_text = Path(file).suffix not in _WEIGHTS and "chat_template" not in file
        if makes_text and old_digests.get(file) != new_digests.get(file):
            return Path(resolve_or_convert_model(name), file)
    return None


def read_content_id(name: str, revision: str | None, with_weights: bool = True) -> str | None:
    """Returns what tells a model from others of its name: a digest of its files, with weights or of
    all others, or the hub's ``revision``.
    """
    digests = compute_file_digests(name, with_weights)
    return hash_json(dict(digests)) if digests else revision


def _list_model_files(folder: Path) -> list[Path]:
    """Lists the files that a loader may read in a model's folder: all but documents and what is
    hidden. Of folders in it only those count that a loader looks into: of further templates, and
    where an index says that weights are.
    """
    places = {*folder.iterdir(), *folder.glob("additional_chat_templates/*")}
    for index in folder.glob("*.index.json"):
        with suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            weight_names = json.loads(index.read_bytes())["weight_map"].values()
            places |= {folder / name for name in weight_names}
    readable_files = (
        path for path in places if path.suffix.lower() not in _DOCUMENTS and path.is_file()
    )
    return sorted(path for path in readable_files if not path.name.startswith((".", *_PAPERS)))


def _make_read_error(name: str, file: Path, error: OSError) -> ValueError:
    return UsageError(f"model {name!r}: cannot read {str(file)!r}: {error.strerror}")


def find_hub_commit(name: str, revision: str | None = None, fetch: bool = True) -> str | None:
    """Finds the current commit of a hub id's revision on the hub, or in its cache if not reached
    (without ``fetch`` only there); None for a local model, and if neither knows it.
    """
    if name.startswith(RANDOM) or Path(resolve_or_convert_model(name)).is_dir():
        return None
    from huggingface_hub import hf_hub_download

    try:
        only_cache = not (fetch and probe_hub_and_set_offline())
        file = hf_hub_download(name, "config.json", revision=revision, local_files_only=only_cache)
    except Exception:  # whatever it is, loading the model hits it again and says so
        return None
    snapshot = Path(file).parent
    return snapshot.name if snapshot.parent.name == "snapshots" else None


BYTES = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
}


def read_config_dtype(name: str, revision: str | None = None) -> str:
    """Returns the number format that a model's config states for its weights; float32 where it
    states none that is decoded with.
    """
    from spec_bench.engine.checkpoint import read_dtype_name

    dtype = read_dtype_name(resolve_or_convert_model(name), revision)
    return dtype if dtype in BYTES else "float32"


@dataclass(frozen=True)
class ModelSize:
    """What memory depends on."""

    parameters: int | None  # exact count; None if unknown
    # keys and values of one token over all layers; None if unknown
    cached_numbers: int | None = None
    positions: int | None = None  # longest sequence; None if unknown or unlimited
    vocab: int | None = None  # tokens; None if unknown


def read_model_size(name: str, parameter_count: int | None = None) -> ModelSize:
    """Reads the size of a model as a pair names it. ``parameter_count`` is the exact one that the
    pair's file gives, used if there is no config here; if it is that of a published architecture,
    that one's shape is taken.
    """
    path = resolve_or_convert_model(name)
    if path.startswith(RANDOM):
        return _compute_architecture_size(path)
    if Path(path).is_dir():
        return _compute_architecture_size(f"{RANDOM}{path}")
    for shape in ARCHITECTURES if parameter_count else ():
        size = _compute_architecture_size(f"{RANDOM}{shape}")
        if size.parameters == parameter_count:
            return size
    return ModelSize(parameter_count)


@cache
def _compute_architecture_size(path: str) -> ModelSize:
    """Computes the size of ``random:NAME`` or ``random:FOLDER``, from a model without storage."""
    import torch

    from spec_bench.engine.loading import load_random_config, make_random_module

    config = load_random_config(path)
    module = make_random_module(path, torch.float16, "meta", 0)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelSize(
        sum(parameter.numel() for parameter in module.parameters()),
        2 * config.num_hidden_layers * heads * width,
        getattr(config, "max_position_embeddings", None),
        config.vocab_size,
    )
