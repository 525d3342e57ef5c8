"""A GGUF file becomes a folder of plain weights, once: its header is checked before anything is
built, and its tensors are read, dequantised and written one by one.

transformers' own reader dequantises a whole model in memory before it gives it out. Here the
package ``gguf`` reads and dequantises each tensor, and transformers says what it is called.
"""

import json
import shutil
import struct
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import psutil
import torch
from gguf import (
    MODEL_ARCH_NAMES,
    GGUFReader,
    LlamaFileType,
    dequantize,
    get_tensor_name_map,
)
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from spec_bench.settings.fields import format_value, one_line
from spec_bench.system import files, model_cache, signals
from spec_bench.system.errors import UsageError

LARGE = 1_000_000_000  # parameters from which weights are stored in bfloat16, not in float32
SHARD_BYTES = 600_000_000  # of one file of weights, and what is held until it is written
_ROWS_BYTES = 1 << 26  # of float32 numbers that are dequantised at once
_COUNTS = struct.Struct("<4sIQQ")  # how a file begins: magic, version, tensors, fields


def convert(file: Path, folder: Path) -> None:
    """Writes a GGUF file as a folder of weights with config and tokenizer; a whole one or none.

    Raises:
        ValueError: the file is damaged, of an unknown family or quantisation, or lacks a tensor or
            has one more than its model; or memory or disk do not suffice.
    """
    checked = GGUFModel(file)
    checked.check_room(folder)
    start_s = time.monotonic()
    size = f"{checked.disk_bytes / 2**30:.1f} GiB"
    print(f"{file.name}: {checked.weights}, {size}, once, into {folder}", file=sys.stderr)
    part = folder.with_name(f"{folder.name}.part")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        files.open_own(folder.parent / ".lock") as held,
        signals.raise_on_signals(),  # so that an interrupt leaves nothing
        files.name_path_in_errors(folder, part),
    ):
        files.lock(held, wait=True)
        for old in folder.parent.glob("*.part"):  # of conversions that were killed
            shutil.rmtree(old)
        if model_cache.is_model(folder):
            return  # somebody else was faster
        try:
            part.mkdir()
            checked.write_rest(part)
            checked.write_weights(part)
            part.rename(folder)
        except ValueError as error:
            raise UsageError(f"cannot read {str(file)!r}: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    print(f"{file.name}: converted in {time.monotonic() - start_s:.0f} s", file=sys.stderr)


class GGUFModel:
    """A model in a GGUF file, or in all files that it was split into, whose header was checked.

    Raises ValueError: the file is damaged or no model, its family or a quantisation is unknown, or
    a tensor is missing or has no place.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._readers = {each: _read_header(each) for each in model_cache.gguf_parts(file)}
            self._fields = next(iter(self._readers.values())).fields
            self._check_quantisations()
            self._config = self._read_with(AutoConfig)
            self._module = self._make_module()
            self._weights = dict(self._module.named_parameters())
            self._names = get_gguf_hf_weights_map(self._module, self._make_processor())
            self._check_names()
            self._joined: dict[str, Any] = {"tensors": {}}  # by a processor, of several tensors
        except Exception as error:  # a damaged or unknown file makes its reader raise anything
            raise UsageError(f"cannot read {str(file)!r}: {one_line(error)}") from error

    def _read_with(self, reader: Any) -> Any:
        """Has transformers read config or tokenizer, from the header that was read already."""
        known = next(iter(self._readers.values()))
        with mock.patch.object(gguf, "GGUFReader", return_value=known):
            return reader.from_pretrained(self.file.parent, gguf_file=self.file.name)

    @cached_property
    def _tensors(self) -> dict[str, tuple[Path, Any]]:
        """By name: the file of each tensor and its header."""
        readers = self._readers.items()
        return {each.name: (file, each) for file, reader in readers for each in reader.tensors}

    @cached_property
    def _family(self) -> str:
        return str(self._fields["general.architecture"].contents())

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of the weights that are written."""
        return torch.bfloat16 if self._numbers() >= LARGE else torch.float32

    @cached_property
    def weights(self) -> str:
        """Says how the weights are stored and will be, as ``Q4_K_M, dequantised to bfloat16``."""
        kinds = {int(each): each.name.removeprefix("MOSTLY_") for each in LlamaFileType}
        field = self._fields.get("general.file_type")
        kind = kinds.get(int(field.contents()), "GGUF") if field else "GGUF"
        return f"{kind}, dequantised to {str(self.dtype).removeprefix('torch.')}"

    def _numbers(self) -> int:
        return sum(int(tensor.n_elements) for _, tensor in self._tensors.values())

    @property
    def disk_bytes(self) -> int:
        """Of the disk."""
        return self._numbers() * self.dtype.itemsize

    def _make_module(self) -> Any:
        """Makes the model without storage."""
        if "output.weight" in self._tensors:  # in another file of a split model
            self._config.tie_word_embeddings = False
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(self._config, dtype=self.dtype)
        module.tie_weights()
        return module

    def _make_processor(self) -> TensorProcessor:
        """Makes what gives a family's tensors the shape and order that transformers has."""
        kind = TENSOR_PROCESSORS.get(self._family, TensorProcessor)
        return kind(config=self._config.to_dict())

    def _check_quantisations(self) -> None:
        for _, tensor in self._tensors.values():
            try:
                dequantize(tensor.data[:1], tensor.tensor_type)
            except NotImplementedError:
                raise UsageError(
                    f"{tensor.name!r} is quantised as {tensor.tensor_type.name}, which the package "
                    "gguf does not dequantise"
                ) from None

    def _check_names(self) -> None:
        """Checks that the model has a place for every tensor, and that none is missing."""
        places = get_tensor_name_map(
            next(key for key, name in MODEL_ARCH_NAMES.items() if name == self._family),
            self._config.num_hidden_layers,
        )
        extra = [name for name in self._tensors if not places.get_name(name, (".weight", ".bias"))]
        if extra := [name for name in extra if not name.startswith("rope_")]:
            told = format_value(", ".join(extra), quoted=False)
            blocks = f"{self._family}.block_count {self._config.num_hidden_layers}"
            raise UsageError(f"{blocks} has no place for {told}")
        there = {place for name, place in self._names.items() if name in self._tensors}
        self._check_lacking(set(self._weights) & set(self._names.values()) - there)

    def _check_lacking(self, names: set[str]) -> None:
        if names:
            raise UsageError(f"it lacks {format_value(', '.join(sorted(names)), quoted=False)}")

    def check_room(self, folder: Path) -> None:
        """Raises a ValueError if memory for the largest tensor or disk for all do not suffice."""
        largest = max(int(tensor.n_elements) for _, tensor in self._tensors.values())
        place = next(each for each in folder.parents if each.is_dir())
        for what, wanted, free in (
            ("of memory", largest * (4 + self.dtype.itemsize), psutil.virtual_memory().available),
            (f"in {place}", self.disk_bytes, shutil.disk_usage(place).free),
        ):
            if wanted > free:
                raise UsageError(
                    f"{str(self.file)!r}, {self.weights}, needs {wanted / 2**30:.1f} GiB {what}, "
                    f"and {free / 2**30:.1f} are free"
                )

    def write_weights(self, folder: Path) -> None:
        """Writes the weights in files of some ``SHARD_BYTES``, each tensor read in its turn."""
        processor = self._make_processor()
        places: dict[str, str] = {}
        made: dict[str, Tensor] = {}

        def write() -> None:
            file = f"model-{len({*places.values()}) + 1:05}.safetensors"
            save_file(made, folder / file, metadata={"format": "pt"})
            places.update(dict.fromkeys(made, file))
            made.clear()

        with tqdm(total=self._numbers(), unit=" weights", unit_scale=True, disable=None) as bar:
            for name, (_, tensor) in self._tensors.items():
                count = int(tensor.n_elements)
                held = sum(each.nbytes for each in made.values())
                if held and held + count * self.dtype.itemsize > SHARD_BYTES:
                    write()
                made.update(self._make_weights(name, processor))
                bar.update(count)
        write()
        self._check_lacking(set(self._weights) - set(places))
        index = {"metadata": {"total_size": self.disk_bytes}, "weight_map": places}
        _write_json(folder / "model.safetensors.index.json", index)

    def _make_weights(self, name: str, processor: TensorProcessor) -> dict[str, Tensor]:
        """Makes what the model calls a tensor of the file; of experts, once all parts are there."""
        result = processor.process(
            weights=_read_tensor(*self._tensors[name]),
            name=name,
            tensor_key_mapping=self._names,
            parsed_parameters=self._joined,
        )
        made = self._joined["tensors"] if name == next(reversed(self._tensors)) else {}
        if place := self._names.get(result.name):
            made[place] = torch.from_numpy(result.weights)
        for place, each in made.items():
            if each.shape != (wanted := self._weights[place].shape):
                raise UsageError(f"{name!r} is {[*each.shape]}, not {[*wanted]} as its header says")
        return {place: each.to(self.dtype).contiguous() for place, each in made.items()}

    def write_rest(self, folder: Path) -> None:
        """Writes config, tokenizer and all ends of answers, and what the folder was made of."""
        tokenizer = self._read_with(AutoTokenizer)
        keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
        ends = [int(self._fields[key].contents()) for key in keys if key in self._fields]
        if ends:  # transformers 5.17 took another one
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends[0])
        tokenizer.save_pretrained(folder)
        config = {**self._config.to_dict(), "architectures": [type(self._module).__name__]}
        config["dtype"] = str(self.dtype).removeprefix("torch.")
        generation = self._module.generation_config.to_dict()
        generation["eos_token_id"] = ends or None
        made_of = {"made_of": self.file.name, "weights": self.weights}
        written = {"config.json": config, "generation_config.json": generation}
        for name, values in {**written, model_cache.MADE_OF: made_of}.items():
            values.pop("transformers_version", None)  # of one file every version makes one model
            _write_json(folder / name, values)
        for reader in self._readers.values():
            reader.fields.clear()  # a vocabulary takes a quarter of a gibibyte


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _Header(GGUFReader):
    """What a file says of its tensors, read in a third of the time: slices of numpy's memory maps
    are slow and large, and a vocabulary takes a million of them.
    """

    @property  # type: ignore[override]
    def data(self) -> np.ndarray:
        """The file's bytes."""
        return self._bytes

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._bytes = np.asarray(mapped)


def _read_header(file: Path) -> _Header:
    """Reads what a file says of its tensors; none of their numbers."""
    with file.open("rb") as stream:
        begin = stream.read(_COUNTS.size)
    if begin[:4] != b"GGUF" or len(begin) < _COUNTS.size:
        raise UsageError("it does not begin as a GGUF file")
    if not _COUNTS.unpack(begin)[2]:  # known before its vocabulary is read, for seconds
        raise UsageError("it holds no weights, only a vocabulary or settings")
    try:
        return _Header(file)
    except Exception as error:
        raise UsageError(f"it is damaged or cut off ({one_line(error)})") from error


def _read_tensor(file: Path, tensor: Any) -> np.ndarray:
    """Reads one tensor's numbers as float32, a part of its rows at a time."""
    stored = np.fromfile(file, np.uint8, int(tensor.n_bytes), offset=int(tensor.data_offset))
    stored = stored.view(tensor.data.dtype).reshape(tensor.data.shape)
    shape = tuple(int(each) for each in reversed(tensor.shape))
    values = np.empty(shape, np.float32)
    rows = values.reshape(-1, shape[-1])
    step = max(1, _ROWS_BYTES // (4 * shape[-1]))
    for first in range(0, len(rows), step):
        part = stored.reshape(len(rows), -1)[first : first + step]
        rows[first : first + step] = dequantize(part, tensor.tensor_type)
    return values


def main(asked: Namespace) -> int:
    """``spec-bench convert FILE``: 0 once the folder is there, 2 where it cannot be."""
    try:
        if asked.remove:
            return _remove(asked.remove)
        file = model_cache.find_gguf(asked.file.expanduser()) if asked.file else None
        if file is None:
            given = repr(str(asked.file)) if asked.file else "nothing"
            raise UsageError(f"{given} is no GGUF file, and no folder with one")
        folder = model_cache.get_converted_path(file)
        if not model_cache.is_model(folder):
            convert(file, folder)
    except (OSError, ValueError) as error:
        raise UsageError(one_line(error)) from error
    print(f"{file.name}: {folder}")
    return 0


def _remove(names: Sequence[str]) -> int:
    """Removes models from the cache, of which ``all`` means every one."""
    known = {
        model_cache.get_cached_name(folder): folder for folder in model_cache.list_cached_models()
    }
    wanted = list(known) if list(names) == ["all"] else names
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"no model {unknown[0]!r} here; known: {', '.join(known) or 'none'}")
    for name in wanted:
        size = model_cache.size_bytes(known[name]) / 2**30
        shutil.rmtree(known[name])
        print(f"removed {name}, {size:.1f} GiB")
    return 0
