"""Tiny random models of several architectures, and the decoders that have draft models."""

import copy
import functools
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import apply_tree_shorthand, build_decoder, read_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model_spec import COMPILERS
from spec_bench.records.types import Request
from spec_bench.tree.base import GrownTree
from spec_bench.vocabulary.decoders import load_decoder_settings
from tests.heads import heads_of

CONF = Path(__file__).parent.parent / "conf"
NEEDS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler"
)
VOCAB = 60
GREEDY = SamplingSettings(temperature=0)
WARM = SamplingSettings(temperature=1.0, probability_dtype="float64")
_SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pard_token": 1,  # so that any of them can be drafted with in parallel
}  # fmt: skip
_GATED = {"num_key_value_heads": 2, "intermediate_size": 64}
ARCHITECTURES = {
    "llama": _GATED, "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gpt_neox": {"intermediate_size": 64}, "qwen2": _GATED,
}  # fmt: skip
PAPERS = ("ar", "sd", "spectr", "specinfer", "mcsd", "mcsd_wor", "mcns", "rsd_c", "rsd_s")
# trees of another form in every iteration
DYNAMIC = ("opt_tree", "dyspec", "sd_dynamic", "traversal_paths", "lookup_or_draft")
NODES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
BEAMS = {"policy": "head_beams", "width": 4, "depth": 3}
# in place of what is large for tiny models
SMALL = {"medusa": {"policy": "node_list", "nodes": NODES}, "redrafter": BEAMS}
FITTED = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0, 0]]


def tiny_model(architecture, **changes):
    """A random model; sharpened, so that greedy continuations do not all collapse to one token."""
    config = AutoConfig.for_model(architecture, **_SHAPE | ARCHITECTURES[architecture] | changes)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return model.eval()


def pair_of(how, device="cpu", dtype=torch.float64, architecture="llama"):
    """A pair of its own, not the shared one, captured one way on a device."""
    where = torch.device(device)
    pair = tiny_pair.__wrapped__(architecture, dtype)
    return [HuggingFaceModel(model.module.to(where), VOCAB, where, how) for model in pair]


@functools.cache
def tiny_pair(architecture, dtype=torch.float32):
    """A random target and a draft that is the target with a little noise."""
    torch.manual_seed(0)
    target = tiny_model(architecture)
    draft = type(target)(target.config).eval()
    draft.load_state_dict(target.state_dict())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.02 * parameter.std() * torch.randn_like(parameter))
    cpu = torch.device("cpu")
    return (
        HuggingFaceModel(target.to(dtype), VOCAB, cpu),
        HuggingFaceModel(draft.to(dtype), VOCAB, cpu),
    )


def decoder_names():
    return sorted(path.stem for path in (CONF / "decoder").glob("*.yaml"))


@functools.cache
def config_of(name):
    return load_decoder_settings([CONF], name)


def decoder_settings(name, spec=None):
    settings = copy.deepcopy(config_of(name))
    if settings["tree"]["policy"] == "fitted_list":  # a job fills it in, from what was measured
        settings["tree"] |= {"nodes": FITTED, "total": len(FITTED)}
    return apply_tree_shorthand(settings, spec)


def built(name, pair, sampling=WARM, rows=1, spec=None, **changes):
    """A decoder with its draft or draft heads; "NAME apart": each path of its trees a row."""
    name, _, apart = name.partition(" ")
    settings, target = decoder_settings(name, spec) | changes, pair[0]
    if apart:
        settings["tree_attention"] = False
    if "tree" not in changes and spec is None:
        settings["tree"] = SMALL.get(name, settings["tree"])
    kind = settings["drafter"]["kind"]
    heads = heads_of(settings["drafter"], target.hidden_size, VOCAB)
    heads = heads and heads.to(target.device, target.dtype)
    drafts = pair[1:] if kind in ("language_model", "lookup_or_model", "pard") else []
    return build_decoder(settings, target, drafts, sampling, rows, heads=heads)


def _drafts_by_model(config):
    """Whether it grows trees of single sequences from a draft model, or is the baseline."""
    return isinstance(config.tree, GrownTree) and (config.drafts > 0 or config.name == "ar")


_CONFIGS = {name: read_decoder(decoder_settings(name)) for name in decoder_names()}
OURS = [name for name, config in _CONFIGS.items() if not config.library]  # on our engine
DECODERS = [name for name in OURS if _drafts_by_model(_CONFIGS[name])]
NEWER = [name for name in DECODERS if name not in PAPERS]


def random_requests(count, new_tokens, seed=0):
    """Prompts of 1 to 12 random tokens."""
    generator = torch.Generator().manual_seed(seed)
    requests = []
    for index in range(count):
        length = 1 + index % 12
        prompt = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
        requests.append(Request(f"p{index}", tuple(prompt), new_tokens))
    return requests
