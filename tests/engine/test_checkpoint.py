"""A checkpoint is read whole or refused in one line that names the tensor or the file."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_bench.engine.loading import ModelSpec, load_model
from tests.kinds import tiny_module

UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path):
    """A sound checkpoint in one file."""
    tiny_module("llama").float().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def changed(folder, change):
    """Changes the tensors of a checkpoint."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def as_pickle(folder):
    """The same weights as a pickle."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def refusal(folder):
    with pytest.raises(ValueError, match=r"^cannot (load|decode with) model ") as caught:
        load_model(ModelSpec(str(folder)))
    text = str(caught.value)
    assert "\n" not in text
    assert str(folder) in text
    return text


def test_a_sound_checkpoint_loads_as_safetensors_and_as_pickled_weights(folder):
    first = load_model(ModelSpec(str(folder)))
    as_pickle(folder)
    second = load_model(ModelSpec(str(folder)))
    tokens = torch.tensor([[3, 1, 4]])
    with torch.inference_mode():
        assert torch.equal(first.module(tokens).logits, second.module(tokens).logits)


def test_a_missing_tensor_is_named_and_not_made_up(folder):
    changed(folder, lambda tensors: tensors.pop(UP))
    assert f"its checkpoint lacks tensors: '{UP}'" in refusal(folder)


def test_a_tensor_of_another_shape_is_named_with_both(folder):
    changed(folder, lambda tensors: tensors.update({UP: torch.zeros(3, 3)}))
    assert f"'{UP}' is [3, 3], not [64, 32]" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder, value):
    changed(folder, lambda tensors: tensors[UP].fill_(value))
    assert f"'{UP}' holds values that are not finite" in refusal(folder)


@pytest.mark.parametrize("kept", [0, 5, 20_000])
def test_a_file_that_was_cut_off_is_named(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors is damaged or cut off" in refusal(folder)


def test_a_file_of_noise_is_named(folder):
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    assert "model.safetensors is damaged or cut off" in refusal(folder)


def test_a_missing_shard_is_named(tmp_path):
    tiny_module("llama").float().save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(tmp_path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_is_not_run(folder, tmp_path):
    trace = tmp_path / "ran"

    class Planted:
        def __reduce__(self):
            return Path.touch, (trace,)

    file = as_pickle(folder)
    for write in (pickle.dump, torch.save):
        with file.open("wb") as opened:
            write({"a": Planted()}, opened)
        assert "pytorch_model.bin holds no plain weights" in refusal(folder)
        assert not trace.exists()


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", "large"), ("num_attention_heads", 5), ("model_type", "x")]
)
def test_a_config_that_cannot_be_is_one_line(folder, key, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    assert "cannot load model" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["lm_head.weight", UP])
def test_weights_stored_as_whole_numbers_without_a_scale_are_named(folder, name, dtype):
    changed(folder, lambda tensors: tensors.update({name: (tensors[name] * 100).to(dtype)}))
    assert f"stores {name!r} as whole numbers" in refusal(folder)
