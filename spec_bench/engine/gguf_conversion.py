"""Converts a GGUF file to a folder of plain weights, once; checks its header first.

transformers' own reader dequantises a whole model in memory first. Here the package ``gguf`` reads
and dequantises each tensor, which is written before the next; transformers maps the names.
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

from spec_bench.settings.fields import format_value, to_one_line
from spec_bench.system import files, model_cache, signals
from spec_bench.system.errors import UsageError

LARGE = 1_000_000_000  # parameters from which weights are stored in bfloat16, not in float32
SHARD_BYTES = 600_000_000  # size of a file of weights, which is held in memory until written
_ROWS_BYTES = 1 << 26  # bytes of float32 numbers that are dequantised in a step
_COUNTS = struct.Struct("<4sIQQ")  # start of a file: magic, version, numbers of tensors and fields


def convert_gguf_file(file: Path, folder: Path) -> None:
    """Writes a GGUF file as a folder of weights with config and tokenizer; a whole one or none.

    Raises:
        ValueError: the file is damaged, of an unknown family or quantisation, or lacks a tensor or
            has one more than its model; or memory or disk do not suffice.
    """
    model = GGUFModel(file)
    model.check_memory_and_disk(folder)
    start_s = time.monotonic()
    size = f"{model.disk_bytes / 2**30:.1f} GiB"
    print(f"{file.name}: {model.dequantisation_text}, {size}, once, into {folder}", file=sys.stderr)
    part = folder.with_name(f"{folder.name}.part")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        files.open_regular_to_write(folder.parent / ".lock") as lock_file,
        signals.signals_as_interrupts(),  # so that an interrupt leaves no partial folder
        files.write_errors_naming(folder, part),
    ):
        files.lock_file(lock_file, may_wait=True)
        for old in folder.parent.glob("*.part"):  # of conversions that were killed
            shutil.rmtree(old)
        if model_cache.has_model_config(folder):
            return  # another process has written it
        try:
            part.mkdir()
            model.write_config_and_tokenizer(part)
            model.clear_header_fields()
            model.write_weights(part)
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
            self._readers = {part: _read_header(part) for part in model_cache.list_gguf_parts(file)}
            self._fields = next(iter(self._readers.values())).fields
            self._check_quantisations()
            self._config = self._read_from_header(AutoConfig)
            self._module = self._make_empty_module()
            self._weights = dict(self._module.named_parameters())
            self._weight_names = get_gguf_hf_weights_map(
                self._module, self._make_tensor_processor()
            )
            self._check_tensor_names()
            self._joined_tensors: dict[str, Any] = {"tensors": {}}  # by a processor
        except Exception as error:  # a damaged or unknown file makes its reader raise anything
            raise UsageError(f"cannot read {str(file)!r}: {to_one_line(error)}") from error

    def _read_from_header(self, auto_class: Any) -> Any:
        """Reads config or tokenizer with transformers, from the header that was read before."""
        header = next(iter(self._readers.values()))
        with mock.patch.object(gguf, "GGUFReader", return_value=header):
            return auto_class.from_pretrained(self.file.parent, gguf_file=self.file.name)

    @cached_property
    def _tensors(self) -> dict[str, tuple[Path, Any]]:
        """File and header of each tensor, by name."""
        readers = self._readers.items()
        return {
            tensor.name: (file, tensor) for file, reader in readers for tensor in reader.tensors
        }

    @cached_property
    def _family(self) -> str:
        return str(self._fields["general.architecture"].contents())

    @cached_property
    def dtype(self) -> torch.dtype:
        """Dtype of the written weights."""
        return torch.bfloat16 if self._parameter_count() >= LARGE else torch.float32

    @cached_property
    def dequantisation_text(self) -> str:
        """The old and the new format of the weights, such as ``Q4_K_M,
        dequantised to bfloat16``.
        """
        kinds = {
            int(file_type): file_type.name.removeprefix("MOSTLY_") for file_type in LlamaFileType
        }
        field = self._fields.get("general.file_type")
        kind = kinds.get(int(field.contents()), "GGUF") if field else "GGUF"
        return f"{kind}, dequantised to {str(self.dtype).removeprefix('torch.')}"

    def _parameter_count(self) -> int:
        return sum(int(tensor.n_elements) for _, tensor in self._tensors.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes of the written weights."""
        return self._parameter_count() * self.dtype.itemsize

    def _make_empty_module(self) -> Any:
        """Makes the model on the meta device, without weights."""
        if "output.weight" in self._tensors:  # in another file of a split model
            self._config.tie_word_embeddings = False
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(self._config, dtype=self.dtype)
        module.tie_weights()
        return module

    def _make_tensor_processor(self) -> TensorProcessor:
        """Makes the converter of a family's tensors to transformers' shapes and order."""
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

    def _check_tensor_names(self) -> None:
        """Checks that the model has a place for every tensor, and that none is missing."""
        places = get_tensor_name_map(
            next(key for key, name in MODEL_ARCH_NAMES.items() if name == self._family),
            self._config.num_hidden_layers,
        )
        extra = [name for name in self._tensors if not places.get_name(name, (".weight", ".bias"))]
        if extra := [name for name in extra if not name.startswith("rope_")]:
            extra_names = format_value(", ".join(extra), quoted=False)
            blocks = f"{self._family}.block_count {self._config.num_hidden_layers}"
            raise UsageError(f"{blocks} has no place for {extra_names}")
        present = {place for name, place in self._weight_names.items() if name in self._tensors}
        self._refuse_missing_tensors(
            set(self._weights) & set(self._weight_names.values()) - present
        )

    def _refuse_missing_tensors(self, names: set[str]) -> None:
        if names:
            raise UsageError(f"it lacks {format_value(', '.join(sorted(names)), quoted=False)}")

    def check_memory_and_disk(self, folder: Path) -> None:
        """Raises ValueError if memory is too small for the largest tensor, or the disk for all
        tensors.
        """
        largest = max(int(tensor.n_elements) for _, tensor in self._tensors.values())
        place = next(parent for parent in folder.parents if parent.is_dir())
        for resource, needed_bytes, free in (
            ("of memory", largest * (4 + self.dtype.itemsize), psutil.virtual_memory().available),
            (f"in {place}", self.disk_bytes, shutil.disk_usage(place).free),
        ):
            if needed_bytes > free:
                raise UsageError(
                    f"{str(self.file)!r}, {self.dequantisation_text}, needs "
                    f"{needed_bytes / 2**30:.1f} GiB {resource}, and {free / 2**30:.1f} are free"
                )

    def write_weights(self, folder: Path) -> None:
        """Writes the weights to files of about ``SHARD_BYTES``, tensor by tensor."""
        processor = self._make_tensor_processor()
        places: dict[str, str] = {}
        shard: dict[str, Tensor] = {}

        def write() -> None:
            file = f"model-{len({*places.values()}) + 1:05}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            places.update(dict.fromkeys(shard, file))
            shard.clear()

        with tqdm(
            total=self._parameter_count(),
            unit=" weights",
            unit_scale=True,
            disable=None,
        ) as bar:
            for name, (_, tensor) in self._tensors.items():
                count = int(tensor.n_elements)
                shard_bytes = sum(weight.nbytes for weight in shard.values())
                if shard_bytes and shard_bytes + count * self.dtype.itemsize > SHARD_BYTES:
                    write()
                shard.update(self._convert_tensor(name, processor))
                bar.update(count)
        write()
        self._refuse_missing_tensors(set(self._weights) - set(places))
        index = {"metadata": {"total_size": self.disk_bytes}, "weight_map": places}
        _write_json(folder / "model.safetensors.index.json", index)

    def _convert_tensor(self, name: str, processor: TensorProcessor) -> dict[str, Tensor]:
        """Converts a tensor of the file to the model's weights; weights made of several tensors
        come with the last tensor.
        """
        result = processor.process(
            weights=_read_dequantised_tensor(*self._tensors[name]),
            name=name,
            tensor_key_mapping=self._weight_names,
            parsed_parameters=self._joined_tensors,
        )
        weights = self._joined_tensors["tensors"] if name == next(reversed(self._tensors)) else {}
        if place := self._weight_names.get(result.name):
            weights[place] = torch.from_numpy(result.weights)
        for place, weight in weights.items():
            if weight.shape != (shape := self._weights[place].shape):
                raise UsageError(
                    f"{name!r} is {[*weight.shape]}, not {[*shape]} as its header says"
                )
        return {place: weight.to(self.dtype).contiguous() for place, weight in weights.items()}

    def write_config_and_tokenizer(self, folder: Path) -> None:
        """Writes config, tokenizer, all tokens that end answers, and the origin of the folder."""
        tokenizer = self._read_from_header(AutoTokenizer)
        keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
        ends = [int(self._fields[key].contents()) for key in keys if key in self._fields]
        if ends:  # transformers 5.17 took another one
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends[0])
        tokenizer.save_pretrained(folder)
        config = {**self._config.to_dict(), "architectures": [type(self._module).__name__]}
        config["dtype"] = str(self.dtype).removeprefix("torch.")
        generation = self._module.generation_config.to_dict()
        generation["eos_token_id"] = ends or None
        made_of = {"made_of": self.file.name, "weights": self.dequantisation_text}
        configs = {"config.json": config, "generation_config.json": generation}
        for name, values in {**configs, model_cache.ORIGIN_FILE: made_of}.items():
            values.pop("transformers_version", None)  # so that all versions write the same files
            _write_json(folder / name, values)

    def clear_header_fields(self) -> None:
        """Frees the headers' fields; a vocabulary takes a quarter of a gibibyte."""
        for reader in self._readers.values():
            reader.fields.clear()


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _GGUFHeader(GGUFReader):
    """Descriptions of a file's tensors. It reads in a third of the time of its base class, because
    slices of numpy's memory maps are slow and large, and a vocabulary takes a million of them.
    """

    @property  # type: ignore[override]
    def data(self) -> np.ndarray:
        """The file's bytes."""
        return self._bytes

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._bytes = np.asarray(mapped)


def _read_header(file: Path) -> _GGUFHeader:
    """Reads the descriptions of a file's tensors without their numbers."""
    with file.open("rb") as stream:
        begin = stream.read(_COUNTS.size)
    if begin[:4] != b"GGUF":
        raise UsageError("it does not begin as a GGUF file")
    if len(begin) == _COUNTS.size and not _COUNTS.unpack(begin)[2]:  # before its vocabulary
        raise UsageError("it holds no weights, only a vocabulary or settings")
    try:
        return _GGUFHeader(file)
    except Exception as error:
        raise UsageError(f"it is damaged or cut off ({to_one_line(error)})") from error


def _read_dequantised_tensor(file: Path, tensor: Any) -> np.ndarray:
    """Reads a tensor's numbers as float32, some rows at a time."""
    data = np.fromfile(file, np.uint8, int(tensor.n_bytes), offset=int(tensor.data_offset))
    data = data.view(tensor.data.dtype).reshape(tensor.data.shape)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    values = np.empty(shape, np.float32)
    rows = values.reshape(-1, shape[-1])
    step = max(1, _ROWS_BYTES // (4 * shape[-1]))
    for start in range(0, len(rows), step):
        part = data.reshape(len(rows), -1)[start : start + step]
        rows[start : start + step] = dequantize(part, tensor.tensor_type)
    return values


def main(arguments: Namespace) -> int:
    """``spec-bench convert FILE``: 0 once the folder is there, 2 where it cannot be."""
    try:
        if arguments.remove:
            return _remove_converted_models(arguments.remove)
        file = model_cache.find_gguf(arguments.file.expanduser()) if arguments.file else None
        if file is None:
            shown_file = repr(str(arguments.file)) if arguments.file else "nothing"
            raise UsageError(f"{shown_file} is no GGUF file, and no folder with one")
        folder = model_cache.get_converted_gguf_path(file)
        if not model_cache.has_model_config(folder):
            convert_gguf_file(file, folder)
    except (OSError, ValueError) as error:
        raise UsageError(to_one_line(error)) from error
    print(f"{file.name}: {folder}")
    return 0


def _remove_converted_models(names: Sequence[str]) -> int:
    """Removes the named models from the cache; ``all`` removes every model."""
    folders = {
        model_cache.get_name_under_fetched_models(folder): folder
        for folder in model_cache.list_cached_models()
    }
    selected = list(folders) if list(names) == ["all"] else names
    if unknown := [name for name in selected if name not in folders]:
        raise UsageError(f"no model {unknown[0]!r} here; known: {', '.join(folders) or 'none'}")
    for name in selected:
        size = model_cache.count_folder_bytes(folders[name]) / 2**30
        shutil.rmtree(folders[name])
        print(f"removed {name}, {size:.1f} GiB")
    return 0
