"""Reads and writes draft heads in the layouts of the public checkpoints.

Each kind of heads defines its own layout.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save

from spec_bench.draft.base import get_heads_class, list_head_kinds
from spec_bench.draft.network import DraftHeads
from spec_bench.settings.fields import get_first_line
from spec_bench.system import files
from spec_bench.system.errors import UsageError


def load_heads(
    source: str,
    device: torch.device,
    dtype: torch.dtype,
    revision: str | None = None,
) -> DraftHeads:
    """Loads heads from a folder, or from a hub repository of the same layout. Raises UsageError if
    there are no heads, or if their weights do not fit their config.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _download_repository(source, revision)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    for kind in list_head_kinds():
        heads = get_heads_class(kind)
        weights = heads.load_weights_of_kind(folder, config)
        if weights is not None:
            loaded = heads.from_weights(weights, config)
            return loaded.to(device=device, dtype=dtype).eval()
    raise UsageError(
        f"{source}: no draft heads; a folder with medusa_lm_head.pt (Medusa), with "
        "model.safetensors and a config.json with num_draft_layers (ReDrafter), or with "
        "model.safetensors or pytorch_model.bin that hold fc.weight (EAGLE), or a target with a "
        "layer of multi-token prediction (MTP) is needed"
    )


def save_heads(heads: DraftHeads, folder: Path) -> None:
    """Writes heads as safetensors, in the layout that ``load_heads`` and the public code read."""
    folder.mkdir(parents=True, exist_ok=True)
    name, weights, config = heads.to_public_checkpoint()
    tensors = {key: value.detach().cpu().contiguous() for key, value in weights.items()}
    files.write_bytes(folder / name, save(tensors))
    files.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _download_repository(source: str, revision: str | None) -> Path:
    """Downloads a hub repository. Raises UsageError if that fails."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=revision))
    except Exception as error:
        raise UsageError(
            f"draft heads {source!r}: no such folder, and the hub says: "
            f"{type(error).__name__}: {get_first_line(error)}"
        ) from None
