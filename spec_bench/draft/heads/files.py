"""Heads on disk, in the layouts of the public checkpoints.

Medusa (FasterDecoding/medusa-vicuna-*): ``config.json`` with ``medusa_num_layers``, the weights in
``medusa_lm_head.pt`` or ``.safetensors`` under ``HEAD.BLOCK.linear.weight`` and
``HEAD.BLOCKS.weight``. ReDrafter (recurrent-drafter): ``config.json`` with ``num_draft_layers``,
``rnn`` and ``exit_dim``, the weights in ``model.safetensors`` under ``lm_head``, ``rnn_u``,
``rnn_w`` and ``input_proj``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spec_bench.draft.heads.medusa import MedusaHeads, MedusaShape
from spec_bench.draft.heads.recurrent import RecurrentHead, RecurrentShape

Heads = MedusaHeads | RecurrentHead
_MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_MODEL_TYPE = "recurrent_drafting_drafter"


def load_heads(source: str, device: torch.device, dtype: torch.dtype) -> Heads:
    """Reads heads from a folder, or from a hub repository of the same layout.

    Args:
        source: folder or hub id.
        device: where they go.
        dtype: of their weights.

    Raises:
        ValueError: the folder holds no heads, or weights that do not fit its config.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _download(source)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    medusa = [folder / name for name in _MEDUSA_FILES if (folder / name).is_file()]
    if medusa:
        heads: Heads = _medusa(_weights(medusa[0]), config)
    elif (folder / "model.safetensors").is_file() and "num_draft_layers" in config:
        heads = _recurrent(load_file(folder / "model.safetensors"), config)
    else:
        raise ValueError(
            f"{source}: no draft heads; a folder with medusa_lm_head.pt (Medusa), or with "
            "model.safetensors and a config.json with num_draft_layers (ReDrafter) is needed"
        )
    return heads.to(device=device, dtype=dtype).eval()


def save_heads(heads: Heads, folder: Path) -> None:
    """Writes heads as ``load_heads`` and the public code read them, as safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in heads.state_dict().items()}
    config: dict[str, Any]
    if isinstance(heads, MedusaHeads):
        config = {
            "medusa_num_heads": heads.shape.heads,
            "medusa_num_layers": heads.shape.blocks,
        }
        save_file(
            {name.removeprefix("heads."): value for name, value in state.items()},
            folder / _MEDUSA_FILES[0],
        )
    else:
        config = {
            "model_type": _MODEL_TYPE,
            "hidden_size": heads.shape.hidden,
            "vocab_size": heads.shape.vocab,
            "exit_dim": heads.shape.width,
            "num_draft_layers": heads.shape.blocks,
            "rnn": heads.shape.recurrent,
        }
        save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _medusa(weights: dict[str, Tensor], config: dict[str, Any]) -> MedusaHeads:
    """The number of heads comes from the weights: the published configs understate it."""
    weights = {re.sub(r"^medusa_head\.", "", name): value for name, value in weights.items()}
    names = [re.fullmatch(r"(\d+)\.(\d+)\.weight", name) for name in weights]
    last = [match for match in names if match]
    if not last:
        raise ValueError(f"no Medusa head among the weights {', '.join(sorted(weights)[:4])}, ...")
    blocks = int(last[0][2])
    stated = config.get("medusa_num_layers", blocks)
    if stated != blocks:
        raise ValueError(f"medusa_num_layers is {stated}, the weights have {blocks} blocks a head")
    vocab, hidden = weights[f"0.{blocks}.weight"].shape
    heads = MedusaHeads(MedusaShape(hidden, vocab, len(last), blocks))
    return _filled(heads, {f"heads.{name}": value for name, value in weights.items()})


def _recurrent(weights: dict[str, Tensor], config: dict[str, Any]) -> RecurrentHead:
    width = config.get("exit_dim", 2 * config["hidden_size"])
    shape = RecurrentShape(
        config["hidden_size"],
        config["vocab_size"],
        config["num_draft_layers"],
        bool(config.get("rnn", False)),
        None if width == 2 * config["hidden_size"] else width,
    )
    return _filled(RecurrentHead(shape), weights)


def _filled(heads: Any, weights: dict[str, Tensor]) -> Any:
    """Heads with these weights.

    Raises:
        ValueError: some are missing, or there are others.
    """
    try:
        heads.load_state_dict(weights)
    except RuntimeError as error:
        lines = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise ValueError(f"draft heads and their config do not fit: {lines}") from None
    return heads


def _weights(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    return dict(torch.load(path, map_location="cpu", weights_only=True))


def _download(source: str) -> Path:
    """Fetches a hub repository.

    Raises:
        ValueError: there is no such folder, and the hub does not have it or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source))
    except Exception as error:
        raise ValueError(
            f"draft heads {source!r}: no such folder, and the hub says: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from None
