"""What is loaded, from where and on which device, and what is refused in one line before."""

import json
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from spec_bench.engine import loading, model_spec
from spec_bench.engine.architectures import (
    ARCHITECTURES,
    get_max_sequence_length,
    read_random_architecture,
)
from spec_bench.engine.loading import (
    ModelSpec,
    choose_common_tokenizer,
    load_config,
    load_model,
    load_tokenizer,
    require_same_vocabulary,
)
from spec_bench.engine.model_spec import COMPILE_MODES
from spec_bench.engine.random_model import TokenIds, make_random_module
from spec_bench.jobs.config import pair as pairs
from spec_bench.jobs.config.model_files import read_model_size
from spec_bench.jobs.config.pair import EngineSettings, resolve_device_and_compile
from tests.kinds import tiny_module
from tests.said import naming, one_line


def tokenizer(*pieces):
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token=pieces[0]))
    )


def test_vocabularies_are_equal_or_refused_naming_the_first_token_that_differs():
    assert require_same_vocabulary(tokenizer("a", "b", "c"), tokenizer("a", "b", "c")) == 3
    with pytest.raises(ValueError, match=naming("'b' has id 1 in the target, 2", "=intersection")):
        require_same_vocabulary(tokenizer("a", "b", "c"), tokenizer("a", "c", "b"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dtype": "int8"}, ("'int8'", "float32", "bfloat16")),
        ({"device": "gpu9"}, ("'gpu9'",)),
        ({"compile": "fast"}, (*COMPILE_MODES, "'fast'")),
        ({"compile": "inductor"}, ("C++ compiler on PATH",)),
        ({"path": "random:llama_tiny", "device_map": "auto"}, ("target_device_map", "'auto'")),
    ],
)
def test_what_no_model_can_be_asked_for_is_refused_with_the_choices(asked, said, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no compiler
    with pytest.raises(ValueError, match=naming(*said)):
        ModelSpec(**{"path": "x", **asked})


def test_a_folder_without_a_model_is_one_clear_line(tmp_path):
    with one_line("cannot load model"):
        load_model(ModelSpec(str(tmp_path)))


ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
DRIVER = (
    "int cuDriverGetVersion(int *to) {{ *to = {}; return 0; }} int cuInit(int f) {{ return {}; }}"
)
OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU "
    "driver by downloading and installing a new version\nAlternatively, install another PyTorch."
)


@pytest.fixture
def torch_for_cuda_13(monkeypatch):
    """As where a driver is there, NVML sees its GPU, and torch was built for CUDA 13.0."""
    monkeypatch.setattr(model_spec, "_DRIVERS", ("/dev/null",))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for asked in (model_spec.explain_cuda_fault, pairs._warn):
        asked.cache_clear()
    yield monkeypatch
    model_spec.explain_cuda_fault.cache_clear()


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("version", "status", "chosen", "says"),
    [
        (13000, 0, "cuda", ""),
        (13020, 0, "cuda", ""),
        (12040, 0, "cpu", r"12\.4.*13\.0.*TORCH_INDEX="),
        (13000, 999, "cpu", "cuInit.*999"),
    ],
)
def test_auto_is_a_gpu_only_where_its_driver_starts_torchs_cuda(
    version, status, chosen, says, tmp_path,
    torch_for_cuda_13, caplog):  # fmt: skip
    (tmp_path / "driver.c").write_text(DRIVER.format(version, status))
    library = tmp_path / "libcuda.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    torch_for_cuda_13.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert (
        resolve_device_and_compile(EngineSettings("auto", "float32"), "org/model").device == chosen
    )
    assert re.search(says, caplog.text) if says else not caplog.text
    if not says:
        assert ModelSpec("org/model", device="cuda:0").device == "cuda:0"
        return
    with one_line(says) as caught:
        ModelSpec("org/model", device="cuda:0")
    assert "'cuda:0'" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "says"), [(OLD, r"12\.4.*13\.0.*TORCH_INDEX="), ("CUDA error: 802", "802")]
)
def test_cuda_that_does_not_start_where_a_model_loads_is_one_line(error, says, torch_for_cuda_13):
    def start():
        raise RuntimeError(error)

    torch_for_cuda_13.setattr(model_spec, "is_cuda_usable", lambda: True)
    torch_for_cuda_13.setattr(torch.cuda, "_lazy_init", start)
    spec = ModelSpec("random:llama_tiny", device="cuda")
    with one_line(says) as caught:
        loading.load_model(spec)
    assert "'cuda'" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "old"),
    [("2.9.1+cu126", True), ("2.10.0", True), ("2.11.0a0+git1", False), ("2.13.0", False),
     ("3.0.0", False)],
)  # fmt: skip
def test_a_gpu_records_only_with_a_torch_that_is_new_enough(version, old, monkeypatch):
    monkeypatch.setattr(model_spec, "is_cuda_usable", lambda: True)
    monkeypatch.setattr(torch, "__version__", version)
    for device, compile in (("cuda", "none"), ("cuda:1", "dynamo"), ("cpu", "static")):
        ModelSpec("x", device=device, compile=compile)
    if not old:
        assert ModelSpec("x", device="cuda", compile="static").compile == "static"
        return
    said = naming("engine.compile=static", version, "2.11", "engine.compile=none")
    with pytest.raises(ValueError, match=said):
        ModelSpec("x", device="cuda", compile="static")


def test_an_embedded_pair_asks_no_driver(torch_for_cuda_13):
    torch_for_cuda_13.setattr(model_spec, "_ASK", "print(12040, 0)")
    assert (
        resolve_device_and_compile(EngineSettings("auto", "float32"), "embedded:target").device
        == "cpu"
    )
    assert model_spec.explain_cuda_fault.cache_info().misses == 0


@pytest.mark.skipif(MAKE is None, reason="needs make")
def test_the_environment_follows_the_index_that_is_named_and_the_driver(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def said(*asked, has=" "):
        command, here = [MAKE, "-n", "-B", *asked], {"PATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, check=True)
        return [line for line in done.stdout.decode().splitlines() if has in line]

    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    plain, package, _ = said("env", has="pip install")
    assert "--index-url" not in plain and package.endswith(" -e '.'")
    assert "cuda" not in said("quickstart")[-1]
    named = said("env", "TORCH_INDEX=file:///wheels", has="^torch==")[0]
    assert "--force-reinstall --index-url file:///wheels " in named
    smi.chmod(0o755)
    assert said("env", has="pip install")[1].endswith(" -e '.[gpu]'")
    assert "--device cuda (docs/gpu.md)" in said("quickstart")[-1]


PUBLISHED = {
    "llama2_7b": 6_738_415_616, "llama2_13b": 13_015_864_320, "llama2_70b": 68_976_648_192,
    "llama_33b": 32_528_943_616, "llama_68m": 68_030_208, "llama_160m": 162_417_408,
    "opt_125m": 125_239_296, "opt_350m": 331_196_416, "opt_1.3b": 1_315_758_080,
    "opt_13b": 12_853_473_280, "opt_30b": 29_974_540_288, "opt_66b": 65_719_701_504,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_architecture_has_the_published_number_of_parameters(name):
    module = make_random_module(f"random:{name}", torch.float16, "meta", 0)
    assert sum(weight.numel() for weight in module.parameters()) == PUBLISHED[name]


def test_the_unpublished_drafter_has_the_ratio_that_the_papers_tables_imply():
    module = make_random_module("random:llama_115m", torch.float16, "meta", 0)
    ratio = sum(weight.numel() for weight in module.parameters()) / PUBLISHED["llama2_7b"]
    # The interval of r that fits every MBSU of Llama-2-7B within print rounding.
    assert 0.017348 <= ratio <= 0.017361


@pytest.mark.parametrize("name", ["llama_tiny", "opt_tiny"])
def test_weights_are_those_of_their_seed_and_leave_other_randomness_alone(name):
    before = torch.random.get_rng_state()
    first, again, other = (
        make_random_module(f"random:{name}", torch.bfloat16, "cpu", seed).state_dict()
        for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert {weight.dtype for weight in first.values()} == {torch.bfloat16}
    assert all(torch.isfinite(weight).all() for weight in first.values())


@pytest.mark.parametrize("name", ["llama_tiny", "opt_tiny"])
def test_a_random_model_loads_like_any_other(name):
    model = load_model(ModelSpec(f"random:{name}", dtype="float32", seed=3))
    assert model.vocab_size == len(load_tokenizer(f"random:{name}")) == 512
    assert model.max_positions == get_max_sequence_length(load_config(f"random:{name}")) == 512
    expected = make_random_module(f"random:{name}", torch.float32, "cpu", 3)
    tokens = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(model.module(tokens).logits, expected(tokens).logits)
        assert model.module(tokens).logits.std() > 0


def test_a_folder_with_a_config_is_an_architecture(tmp_path):
    tiny = {**ARCHITECTURES["llama_tiny"], "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    assert read_random_architecture(f"random:{tmp_path}")["num_hidden_layers"] == 3
    assert len(load_model(ModelSpec(f"random:{tmp_path}")).module.model.layers) == 3


def test_a_model_that_projects_its_embeddings_as_opt_350m_does_loads(tmp_path):
    shape = {"word_embed_proj_dim": 32, "do_layer_norm_before": False}
    (tmp_path / "config.json").write_text(json.dumps({**ARCHITECTURES["opt_tiny"], **shape}))
    model = load_model(ModelSpec(f"random:{tmp_path}"))
    assert model.module.get_input_embeddings().weight.shape == (512, 32)
    assert model.vocab_size == 512


def test_an_unknown_architecture_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=naming("'random:llama9'", "llama2_7b")):
        read_random_architecture("random:llama9")


def test_a_folder_without_a_tokenizer_is_a_whole_line_with_what_to_do(tmp_path):
    config = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=naming(str(tmp_path), "pair.tokenizer=")) as raised:
        load_tokenizer(str(tmp_path))
    (line,) = str(raised.value).splitlines()
    assert ": ;" not in line and not re.search(r": ?$|of:;", line)


def test_models_without_tokenizers_must_embed_the_same_tokens():
    tokenizer, tokens = choose_common_tokenizer([TokenIds(512), TokenIds(512)])
    assert (len(tokenizer), tokens) == (512, 512)
    with pytest.raises(ValueError, match=naming("32000", "50272")):
        choose_common_tokenizer([TokenIds(32000), TokenIds(50272)])


def test_a_text_put_to_token_ids_says_which_task_to_take():
    with pytest.raises(ValueError, match=naming("task=random")):
        TokenIds(8)("a text")
    assert TokenIds(8).decode((3, 1)) == "3 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("You are trying to access a gated repo.\nMake sure ...",
         ("is gated; request access on its model page", "(meta-llama/Llama-2-7b-hf)", "HF_TOKEN")),
        ("x does not appear to have a file named config.json.\nCheckout ...", ("config.json",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("what", [AutoModelForCausalLM, AutoTokenizer])
def test_what_the_hub_does_not_give_is_one_line(monkeypatch, what, text, said):
    def refused(path, **options):
        response = httpx.Response(403, request=httpx.Request("GET", "https://hub/x"))
        gated = GatedRepoError("Cannot access gated repo.\nVisit ...", response=response)
        raise OSError(text) from (
            gated if "gated" in text else None
        )  # as transformers passes it on

    monkeypatch.setattr(what, "from_pretrained", refused)
    load = load_tokenizer if what is AutoTokenizer else lambda path: load_model(ModelSpec(path))
    with one_line("'meta-llama/Llama-2-7b-hf'") as caught:
        load("meta-llama/Llama-2-7b-hf")
    assert all(each in str(caught.value) for each in said)


# A checkpoint is read whole or refused in one line that names the tensor or the file.

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A sound checkpoint in one file."""
    tiny_module("llama").float().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def changed(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def as_pickle(folder):
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


CHANGES = {
    "lacking": (lambda tensors: tensors.pop(UP), f"its checkpoint lacks tensors: '{UP}'"),
    "other shape": (lambda t: t.update({UP: torch.zeros(3, 3)}), f"'{UP}' is [3, 3], not [64, 32]"),
    "more": (
        lambda t: t.update({"model.more.weight": torch.ones(3, 3)}),
        "its checkpoint holds tensors that its config has no place for: 'model.more.weight'",
    ),
    "zeros": (
        lambda t: [each.zero_() for each in t.values()],
        "nothing but zeros in 'model.embed_tokens.weight' and ",
    ),
    "a layer of zeros": (
        lambda t: [each.zero_() for name, each in t.items() if ".layers.1." in name],
        "nothing but zeros in 'model.layers.1'",
    ),
    "NaN": (lambda t: t[UP].fill_(torch.nan), f"'{UP}' holds values that are not finite"),
    "inf": (lambda t: t[UP].fill_(torch.inf), f"'{UP}' holds values that are not finite"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tensor_that_is_not_there_or_not_as_it_should_be_is_named(folder, name):
    change, said = CHANGES[name]
    changed(folder, change)
    assert said in refusal(folder)


def test_layers_behind_the_configs_last_are_refused_but_not_what_drafts_sees_or_follows(folder):
    def say(**changed):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changed}))

    beside = ["visual.blocks.0.weight", "model.layers.0.self_attn.k_scale", "v_head.summary.bias"]
    beside += ["model.layers.0.self_attn.rotary_emb.inv_freq", "mtp.fc.weight"]
    changed(folder, lambda t: t.update({name: torch.ones(2) for name in beside}))
    load_model(ModelSpec(str(folder)))
    say(num_hidden_layers=1)
    assert "no place for: 'model.layers.1.input_layernorm.weight' and 26 more" in refusal(folder)
    say(num_nextn_predict_layers=3)
    load_model(ModelSpec(str(folder)))


@pytest.mark.parametrize("kept", [0, 5, 20_000, None])
def test_a_file_that_was_cut_off_or_is_noise_is_named(folder, kept):
    file = folder / "model.safetensors"
    noise = bytes(range(256)) * 20
    file.write_bytes(noise if kept is None else file.read_bytes()[:kept])
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
    for text in (json.dumps({**config, key: value}), "[1]"):
        (folder / "config.json").write_text(text)
        assert "cannot load model" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["lm_head.weight", UP])
def test_weights_stored_as_whole_numbers_without_a_scale_are_named(folder, name, dtype):
    changed(folder, lambda tensors: tensors.update({name: (tensors[name] * 100).to(dtype)}))
    assert f"stores {name!r} as whole numbers" in refusal(folder)


def quantised(folder, change, **how):
    """Changes the tensors of a checkpoint, and says in its config how they are stored."""
    changed(folder, change)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": how}))


def as_fp8(tensors):
    for name in [name for name in tensors if "_proj.weight" in name]:
        tensors[f"{name}_scale_inv"] = torch.full((1, 1), 0.5)
        tensors[name] = (2 * tensors[name]).to(torch.float8_e4m3fn)


def as_mxfp4(tensors):
    """Every number of an expert becomes 1: 2 is its code, 127 its scale's exponent of 0."""
    for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name]:
        experts, rows, columns = tensors.pop(name).shape
        blocks = torch.full((experts, columns, rows // 32, 16), 0x22, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": blocks[..., 0] * 0 + 127}


@pytest.mark.parametrize(
    ("kind", "way", "store", "part", "expected"),
    [
        ("llama", "fp8", as_fp8, UP, None),
        ("gpt_oss", "mxfp4", as_mxfp4, "model.layers.0.mlp.experts.gate_up_proj", 1.0),
    ],
)
def test_weights_of_eight_and_four_bits_become_plain_ones_and_are_counted_so(
    kind, way, store, part, expected,
    tmp_path, monkeypatch):  # fmt: skip
    folder = tmp_path / kind
    tiny_module(kind).float().save_pretrained(folder)
    parameters = load_model(ModelSpec(str(folder))).parameters
    before = load_file(folder / "model.safetensors")[part]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # packed then, if not asked for
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    quantised(folder, store, quant_method=way, modules_to_not_convert=["lm_head"])
    model = load_model(ModelSpec(str(folder)))
    assert model.parameters == parameters == read_model_size(str(folder)).parameters
    weight = model.module.get_parameter(part)
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, before if expected is None else before * 0 + expected,
                               rtol=0.07, atol=0.002)  # fmt: skip


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq'"),
        ({"load_in_4bit": True}, "{'load_in_4bit': True}"),
    ],
)
def test_other_quantised_weights_are_refused_before_they_are_read(folder, how, named):
    quantised(folder, lambda tensors: None, **how)
    (folder / "model.safetensors").unlink()
    said = refusal(folder)
    assert f"quantization_config: {named}" in said and "fp8 or mxfp4" in said
