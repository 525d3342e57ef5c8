"""A pair's models as files: their folders, identities and sizes.

Knows the file system and shapes. Loads no weights; a name that is no folder is left to the hub.
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

EMBEDDED_PREFIX = "embedded:"
FETCHED_PREFIX = "fetched:"  # by the make target of that name (its part before a slash)
_HEADS_FOLDER = "heads/"  # embedded:heads/NAME
_SAMPLE_BYTES = 1 << 20  # hashed from either end of a large weights file
_WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"})
_DOCUMENT_SUFFIXES = frozenset(
    {".md", ".log", ".out", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".svg"}
)
_DOCUMENT_STARTS = ("LICENSE", "NOTICE", "README", "events.out.")  # how names of documents begin


def resolve_or_convert_model(name: str) -> str:
    """Returns the folder of ``embedded:NAME`` in the package, of ``fetched:NAME`` in the cache, and
    of a GGUF file, which is converted if it was not before; any other name unchanged. Raises
    UsageError if the package embeds no such model, if a model was not fetched or cannot be
    converted, if a path-like name is no folder, or if ``random:NAME`` is no architecture.
    """
    if name.startswith(RANDOM):
        read_random_architecture(name)
        return name
    if name.startswith(EMBEDDED_PREFIX):
        root = Path(spec_bench.__file__).resolve().parent / "embedded"
        embedded_name = name.removeprefix(EMBEDDED_PREFIX)
        folder = root / (
            embedded_name if embedded_name.startswith(_HEADS_FOLDER) else f"models/{embedded_name}"
        )
        if not (folder / "config.json").is_file():
            models = [config.parent.name for config in root.glob("models/*/config.json")]
            heads = [
                _HEADS_FOLDER + config.parent.name
                for config in root.glob(f"{_HEADS_FOLDER}*/config.json")
            ]
            choices = sorted(f"{EMBEDDED_PREFIX}{model}" for model in (*models, *heads))
            raise UsageError(f"unknown embedded model {name!r}; embedded: {', '.join(choices)}")
        return str(folder)
    if name.startswith(FETCHED_PREFIX):
        folder = get_fetched_model_path(name.removeprefix(FETCHED_PREFIX))
        if not has_model_config(folder):
            target = name.removeprefix(FETCHED_PREFIX).split("/")[0]
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
    """Hashes a local model's config and weights (both ends of large files), so that different
    models in the same folder differ; None for a hub id. Raises UsageError, with the file, if it
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
    """Computes the digests of a local model's files, without the weights' unless ``with_weights``;
    empty for a hub id, which its commit identifies. Raises UsageError if a file cannot be read.
    """
    if name.startswith(RANDOM):
        return {"config.json": hash_json(read_random_architecture(name), 64)}
    folder = Path(resolve_or_convert_model(name))
    if not folder.is_dir():
        return {}
    digests = {}
    for file in _list_model_files(folder):
        if with_weights or file.suffix not in _WEIGHT_SUFFIXES:
            try:
                digests[os.path.relpath(file, folder)] = hash_file_with_cache(file)
            except OSError as error:
                raise _make_read_error(name, file, error) from None
    return digests


def find_changed_tokenizer_file(name: str, old_digests: Digests) -> Path | None:
    """Finds a file of a local model that may belong to its tokenizer and has another digest than
    before; None if there is none, and for a hub id. Weights and chat templates do not turn token
    ids into text.
    """
    if "commit" in old_digests:
        return None
    new_digests = compute_file_digests(name, with_weights=False)
    for file in {**old_digests, **new_digests}:
        makes_text = Path(file).suffix not in _WEIGHT_SUFFIXES and "chat_template" not in file
        if makes_text and old_digests.get(file) != new_digests.get(file):
            return Path(resolve_or_convert_model(name), file)
    return None


def read_content_id(name: str, revision: str | None, with_weights: bool = True) -> str | None:
    """Returns the id of a model's content: a digest of its files (without weights unless
    ``with_weights``), or the hub's ``revision`` for a hub id.
    """
    digests = compute_file_digests(name, with_weights)
    return hash_json(dict(digests)) if digests else revision


def _list_model_files(folder: Path) -> list[Path]:
    """Lists the files in a model's folder that a loader may read: all but documents and hidden
    files. Subfolders count only for additional chat templates, and for weights that an index lists.
    """
    places = {*folder.iterdir(), *folder.glob("additional_chat_templates/*")}
    for index in folder.glob("*.index.json"):
        with suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            weight_names = json.loads(index.read_bytes())["weight_map"].values()
            places |= {folder / name for name in weight_names}
    readable_files = (
        path for path in places if path.suffix.lower() not in _DOCUMENT_SUFFIXES and path.is_file()
    )
    return sorted(
        path for path in readable_files if not path.name.startswith((".", *_DOCUMENT_STARTS))
    )


def _make_read_error(name: str, file: Path, error: OSError) -> ValueError:
    return UsageError(f"model {name!r}: cannot read {str(file)!r}: {error.strerror}")


def find_hub_commit(name: str, revision: str | None = None, fetch: bool = True) -> str | None:
    """Finds the current commit of a hub id's revision on the hub, or in the hub's cache if it
    cannot be reached (without ``fetch`` only in the cache); None for a local model, and if neither
    has it.
    """
    if name.startswith(RANDOM) or Path(resolve_or_convert_model(name)).is_dir():
        return None
    from huggingface_hub import hf_hub_download

    try:
        only_cache = not (fetch and probe_hub_and_set_offline())
        file = hf_hub_download(name, "config.json", revision=revision, local_files_only=only_cache)
    except Exception:  # loading the model raises the same error later
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
    """Reads the dtype that a model's config states for its weights; float32 if it states none that
    is supported.
    """
    from spec_bench.engine.checkpoint import read_dtype_name

    dtype = read_dtype_name(resolve_or_convert_model(name), revision)
    return dtype if dtype in BYTES else "float32"


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model that determine its memory."""

    parameters: int | None  # exact count; None if unknown
    # keys and values of one token over all layers; None if unknown
    cached_numbers: int | None = None
    positions: int | None = None  # longest sequence; None if unknown or unlimited
    vocab: int | None = None  # tokens; None if unknown


def read_model_size(name: str, parameter_count: int | None = None) -> ModelSize:
    """Reads the size of a model. ``parameter_count``, from the pair's file, is used if there is no
    config here; if a published architecture has exactly that count, its shape is taken.
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

    from spec_bench.engine.random_model import load_random_config, make_random_module

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
