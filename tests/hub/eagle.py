"""Heads of random weights as their publishers lay them out: EAGLE's, DFlash's, MiMo's own layer."""

import json

import torch
from safetensors.torch import load_file, save_file

from spec_bench.draft.heads import save_heads
from spec_bench.draft.mtp import MtpHead, MtpShape
from tests.heads import dflash_head, eagle3_head, eagle_head


def write_eagle(folder, target):
    """One head; its version and layout are told by the repository's name.

    SafeAILab's are pickled, with embeddings; its EAGLE-3 calls its block ``midlayer``. Speculators'
    are safetensors.

    Args:
        folder: the repository.
        target: config of the model that it belongs to.
    """
    folder.mkdir(parents=True)
    width, vocab = target["hidden_size"], target["vocab_size"]
    third = "eagle3" in folder.name.lower()
    made = (eagle3_head if third else eagle_head)(width, vocab)
    _, tensors, config = made.to_files()
    weights = {
        # In float16 EAGLE-1's outputs, which nothing norms, would leave its range.
        name: (part * 0.1 if part.is_floating_point() else part).detach().clone().contiguous()
        for name, part in tensors.items()
    }
    if folder.parent.name == "RedHatAI":
        save_file(weights, folder / "model.safetensors")
    else:
        config = dict(config.get("transformer_layer_config", config))
        del config["rope_parameters"]
        if third:
            config |= {"draft_vocab_size": made.shape.draft_vocab, "fc_norm": True}
        weights["embed_tokens.weight"] = torch.randn(vocab, width)
        named = {name.replace("layers.0.", "midlayer.", third): p for name, p in weights.items()}
        torch.save(named, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config))


def write_dflash(folder, target):
    """A DFlash head of blocks of 16, as z-lab's."""
    head = dflash_head(target["hidden_size"], target["vocab_size"])
    with torch.no_grad():
        for part in head.parameters():
            part.mul_(0.1)
    save_heads(head.half(), folder)


def add_mtp(folder):
    """Makes of a Llama's folder a MiMo's: its layer of multi-token prediction beside the body."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), "model_type": "mimo"}
    config["architectures"] = ["MiMoForCausalLM"]
    torch.manual_seed(0)
    head = MtpHead(MtpShape({key: config[key] for key in config if key != "dtype"}))
    _, tensors, _ = head.half().to_files()
    weights = load_file(folder / "model.safetensors")
    width = config["num_key_value_heads"] * config["head_dim"]
    for block in range(config["num_hidden_layers"]):  # Qwen2's attention has biases
        for part in "qkv":
            name = f"model.layers.{block}.self_attn.{part}_proj.bias"
            weights[name] = torch.zeros(width, dtype=torch.float16)
    save_file(weights | tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path.write_text(json.dumps(config))
