"""Makes an extra block of a target's class, and views of a target with some blocks left out."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spec_bench.engine.architectures import register_model_families
from spec_bench.engine.hugging_face import HuggingFaceModel, find_block_lists
from spec_bench.engine.loading import wrap_and_probe
from spec_bench.engine.model import LanguageModel
from spec_bench.system.errors import UsageError

_ATTENTION = "spec_bench_own_block"


def make_transformers_config(config: Mapping[str, Any]) -> Any:
    """Makes transformers' config object from a ``config.json``. Raises UsageError if transformers
    lacks the family.
    """
    from transformers import AutoConfig

    register_model_families()
    settings = {key: value for key, value in config.items() if key != "model_type"}
    family = str(config.get("model_type"))
    try:
        return AutoConfig.for_model(family, **settings)
    except ValueError:
        raise UsageError(f"transformers knows no models of type {family!r}") from None


class LastBlockFactory:
    """Makes the parts of an extra last layer of a model's class. Its attention calls ``attend``, a
    function of (layer, q [B, H, T, d], k, v, scale). The config comes from
    ``make_transformers_config`` and is changed. Raises UsageError if the last layer does not attend
    to all tokens.
    """

    def __init__(self, config: Any) -> None:
        from transformers import AttentionInterface, AutoModel

        if (kinds := getattr(config, "layer_types", None)) and kinds[-1] != "full_attention":
            raise UsageError(f"a block of {kinds[-1]} is not supported")
        with torch.device("meta"):
            self._body: Any = AutoModel.from_config(config, attn_implementation="eager")
        AttentionInterface.register(_ATTENTION, _call_given_attention)
        config._attn_implementation = _ATTENTION
        self._config = config

    def make_norm(self) -> Any:
        """Makes a norm of the hidden size."""
        return type(self._body.norm)(self._config.hidden_size, eps=self._config.rms_norm_eps)

    def make_block(self) -> Any:
        """Makes a block with its class's initial weights."""
        return type(self._body.layers[-1])(self._config, self._config.num_hidden_layers - 1)

    def make_rotary(self) -> Any:
        """Makes the rotary embedding, a function of (x, positions [B, T]) that returns (cosine,
        sine).
        """
        return type(self._body.rotary_emb)(self._config)


def _call_given_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    return attend(0, query, key, value, scaling).transpose(1, 2).contiguous(), None


def make_block_view(model: LanguageModel, places: Sequence[int]) -> LanguageModel:
    """Makes a view of a model with only the blocks ``places``, in ascending order, the norm and the
    last layer. It shares the weights and has its own cache. A view of the first blocks computes bit
    for bit what the model's blocks do.

    Raises UsageError if the model's blocks cannot be identified.
    """
    if not isinstance(model, HuggingFaceModel):
        raise UsageError("only a model of transformers can draft with blocks of its own")
    name = f"blocks {', '.join(map(str, places))} of the target"
    view = wrap_and_probe(_keep_blocks(model.module, places), name, model.compile)
    view.vocab_size = model.vocab_size
    view.max_positions = model.max_positions
    return view


def _keep_blocks(module: Any, places: Sequence[int]) -> Any:
    """Copies a module with only some blocks; the copy shares the tensors. Raises UsageError if its
    blocks are not one list.
    """
    config = module.config
    lists = find_block_lists(module, config.get_text_config().num_hidden_layers)
    if len(lists) != 1 or config.get_text_config() is not config:
        raise UsageError(f"{type(module).__name__}: its blocks are not one list")
    shared: list[Any] = [*module.parameters(), *module.buffers()]
    for part in module.modules():  # packed matrices, and the layers of which parts were fused
        shared += [value for value in vars(part).values() if isinstance(value, Tensor | tuple)]
    view = copy.deepcopy(module, {id(value): value for value in shared})
    view.config.num_hidden_layers = len(places)
    if getattr(config, "layer_types", None):
        view.config.layer_types = [config.layer_types[place] for place in places]
    owner, _, name = lists[0].rpartition(".")
    blocks = view.get_submodule(lists[0])
    setattr(view.get_submodule(owner), name, nn.ModuleList(blocks[place] for place in places))
    for index, place in enumerate(places):
        for part in blocks[place].modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = index  # the layer of the cache
    return view
