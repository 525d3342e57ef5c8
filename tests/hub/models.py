"""Tiny Llamas, heads behind published ids: ``python -m tests.hub.models CACHE MODULE ...``."""

import json
import runpy
import sys
from functools import partial

import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.draft.heads import save_heads
from spec_bench.draft.mtp import MtpHead, MtpShape
from tests.heads import HEADS
from tests.jobs.tiny import tiny_tokenizer
from tests.printed import published_pairs

WIDTH = 32


def write_models(command, cache):
    """Those that a command names, written once."""
    settings = command.settings
    pair = next((each for each in published_pairs() if each["name"] == settings.get("pair")), {})
    for key in ("target", "draft"):
        if name := settings.get(f"pair.{key}", pair.get(key)):
            written(cache, name, write_model)
    for kind, name in pair.get("heads", {}).items():
        written(cache, name, partial(write_heads, kind))


def written(cache, name, write):
    """A repository as the hub's client keeps it; a folder of this machine is none."""
    folder = cache / f"models--{name.replace('/', '--')}"
    if name.count("/") == 1 and not folder.exists():
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(snapshot.name)
        write(snapshot)


def write_model(folder):
    """A MiMo has its layer of multi-token prediction beside the body."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    family = "mimo" if "MiMo" in str(folder) else "llama"
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=2, bos_token_id=1,
        max_position_embeddings=4096, eos_token_id=2, pard_token=len(tokenizer) - 1,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family == "mimo":
        own = json.loads((folder / "config.json").read_text())
        _, tensors, _ = MtpHead(
            MtpShape({k: own[k] for k in own if k != "dtype"})
        ).to_public_checkpoint()
        file = folder / "model.safetensors"
        save_file(load_file(file) | tensors, file, metadata={"format": "pt"})


def write_heads(kind, folder):
    head = HEADS[kind](WIDTH, len(tiny_tokenizer()))
    with torch.no_grad():
        for part in head.parameters():
            part.mul_(
                0.1
            )  # in float16 EAGLE-1's outputs, which nothing norms, would leave its range
    save_heads(head, folder)


if __name__ == "__main__":
    constants.HF_HUB_CACHE, module, *words = sys.argv[1:]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
