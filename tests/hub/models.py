"""Tiny models of random weights under the published ids, with the published kinds of files.

What differs between the published repositories is kept: the family, whether the tokenizer comes as
SentencePiece's file alone, whether weights are pickled, padded vocabularies, gates.
"""

import io
import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
import torch
import yaml
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from spec_bench.settings.configs import conf_dir
from spec_bench.tasks.source import EMBEDDED
from tests.hub.eagle import add_mtp, write_dflash, write_eagle
from tests.hub.repository import TOKEN

PADDED = 7  # rows of OPT's embeddings beyond its tokens, as published
HEADS, BLOCKS, WIDTH = 5, 1, 32
DEEP = 5  # blocks of a target, so that EAGLE-3's three hidden states are three
LLAMA2_CHAT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] + "
    "' [/INST]' }}{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def published_pairs():
    """The pairs of ``conf/pair`` whose models lie on the hub."""
    for file in sorted((conf_dir() / "pair").glob("*.yaml")):
        pair = yaml.safe_load(file.read_text(encoding="utf-8"))
        if "/" in pair.get("target", ""):
            yield pair


def write_models(root):
    """Writes a model for every id of ``conf/pair`` below ``root/models``, and published heads."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizers = Path(folder)
        _sentencepiece(tokenizers)
        _byte_level(tokenizers)
        for index, name in enumerate(sorted(_ids())):
            torch.manual_seed(index)
            _write_model(root / "models" / name, name, tokenizers)
    for name, kind in sorted(_heads().items()):
        write = {"medusa": _write_heads, "dflash": write_dflash}.get(kind, write_eagle)
        write(root / "models" / name, _target_of(root, name))


def _ids():
    pairs = list(published_pairs())
    return {p["target"] for p in pairs} | {p["draft"] for p in pairs if p["draft"]}


def _heads():
    """Published heads with their kind."""
    named = [each for pair in published_pairs() for each in pair.get("heads", {}).items()]
    return {name: kind for kind, name in named if name and name.count("/") == 1}


def _target_of(root, heads):
    """The config of the model that heads belong to, its id with it."""
    target = next(p for p in published_pairs() if heads in p.get("heads", {}).values())["target"]
    config = json.loads((root / "models" / target / "config.json").read_text())
    return {**config, "base_model_name_or_path": target}


def _write_model(folder, name, tokenizers):
    folder.mkdir(parents=True)
    opt = name.startswith("facebook/opt")
    kind = "opt" if opt else "llama"
    size = len(AutoTokenizer.from_pretrained(tokenizers / kind))
    model = (_opt if opt else _llama)(name, size)
    if "PARD" in name:
        model.config.pard_token = size - 1
    model.half().save_pretrained(folder)
    if "MiMo" in name:
        add_mtp(folder)
        _write_tokenizer(folder, name, tokenizers / kind)
        return
    if not name.startswith(("meta-llama", "huggyllama")):
        _pickle(folder, model)
    _write_tokenizer(folder, name, tokenizers / kind)
    if name.startswith("meta-llama"):
        settings = {"gated": "manual", "tokens": [TOKEN]}
        (folder / ".hub.json").write_text(json.dumps(settings))


def _llama(name, size):
    old = name.startswith(("JackFram", "double7"))
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=1 if old else DEEP,
            num_attention_heads=2,
            max_position_embeddings=4096 if "Llama-2" in name else 2048,
            bos_token_id=0 if old else 1,  # wrong in the published configs, too
            pad_token_id=1 if old else None,
            eos_token_id=2,
        )
    )


def _opt(name, size):
    small = name.endswith("350m")  # the one with projections, and norms at the end
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=size + PADDED,
            hidden_size=WIDTH,
            ffn_dim=2 * WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=2048,
            word_embed_proj_dim=WIDTH // 2 if small else WIDTH,
            do_layer_norm_before=not small,
        )
    )


def _pickle(folder, model):
    """The weights as they were published before safetensors."""
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def _write_tokenizer(folder, name, source):
    if source.name == "opt":
        files = ("vocab.json", "merges.txt", "tokenizer_config.json")
    elif name.startswith(("meta-llama", "huggyllama")):
        files = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json")
    else:
        files = ("tokenizer.model", "tokenizer_config.json")
    for file in files:
        shutil.copy(source / file, folder)
    if name.endswith("chat-hf"):
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = LLAMA2_CHAT
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _texts():
    """What the tokenizers are trained on: the package's sample rows, as they stand."""
    files = sorted(EMBEDDED.glob("*.jsonl"))
    return [line for file in files for line in file.read_text("utf-8").splitlines()[:20]]


def _sentencepiece(folder):
    """A tokenizer as Llama has it, with and without its fast form."""
    own = folder / "llama"
    own.mkdir()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_texts()),
        model_writer=model,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        character_coverage=0.99995,
        add_dummy_prefix=True,
        minloglevel=2,
    )
    (own / "tokenizer.model").write_bytes(model.getvalue())
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "model_max_length": 2048,
    }
    (own / "tokenizer_config.json").write_text(json.dumps(config))
    fast = AutoTokenizer.from_pretrained(own)
    fast.save_pretrained(folder / "fast")
    shutil.copy(folder / "fast" / "tokenizer.json", own)


def _byte_level(folder):
    """A tokenizer as OPT has it: GPT-2's with four tokens in front."""
    own = folder / "opt"
    own.mkdir()
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained.train_from_iterator(_texts(), vocab_size=600, special_tokens=special)
    trained.save_model(str(own))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "</s>",
        "eos_token": "</s>",
        "unk_token": "</s>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "add_prefix_space": False,
        "errors": "replace",
    }
    (own / "tokenizer_config.json").write_text(json.dumps(config))
    (own / "config.json").write_text(json.dumps({"model_type": "opt"}))


def _write_heads(folder, target):
    """Medusa's published heads: pickled, and a config that understates their number."""
    folder.mkdir(parents=True)
    weights = {}
    for head in range(HEADS):
        weights[f"{head}.0.linear.weight"] = torch.zeros(WIDTH, WIDTH)
        weights[f"{head}.0.linear.bias"] = torch.zeros(WIDTH)
        weights[f"{head}.{BLOCKS}.weight"] = torch.randn(target["vocab_size"], WIDTH)
    torch.save(weights, folder / "medusa_lm_head.pt")
    stated = {"medusa_num_heads": 2, "medusa_num_layers": BLOCKS}
    stated["base_model_name_or_path"] = target["base_model_name_or_path"]
    (folder / "config.json").write_text(json.dumps(stated))
