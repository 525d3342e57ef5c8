"""EAGLE heads of random weights as three of their publishers lay them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.heads import eagle3_head, eagle_head


def write_eagle(folder: Path, target: dict[str, Any]) -> None:
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
