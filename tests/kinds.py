"""Tiny random models of every kind, of such weights that answers vary with windows of 16."""

import copy
import functools
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.records.types import Request

VOCAB = 60
WINDOW = 16
LAYERS = 4
# An output matrix of its own: with the input's, a random model repeats what it read last.
_COMMON = {
    "vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_PLAIN = _COMMON | {
    "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "max_position_embeddings": 256, "pad_token_id": None,
}  # fmt: skip
_GATED = _PLAIN | {"intermediate_size": 64, "num_key_value_heads": 2}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GPT2 = _COMMON | {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 256}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)}
_SMALL = _GATED | _MIXED | {"head_dim": 8}
_SCALED = _SMALL | {"query_pre_attn_scalar": 8}
_SOME = _GATED | _MIXED | {"use_sliding_window": True}


@dataclass(frozen=True)
class Kind:
    """How to make one kind of tiny model."""

    model_type: str  # transformers' name
    config: dict
    open: dict | None = None  # settings that turn its windows off


def _windowed(model_type, config):
    return Kind(model_type, config | {"sliding_window": WINDOW}, {"sliding_window": 10**6})


KINDS = {
    "llama": Kind("llama", _GATED),
    "mistral": _windowed("mistral", _GATED),
    "mixtral": _windowed("mixtral", _GATED | _EXPERTS),
    "qwen2": _windowed("qwen2", _SOME),
    "qwen3": _windowed("qwen3", _SOME | {"head_dim": 8}),
    "phi3": _windowed("phi3", _GATED),
    "gemma2": _windowed("gemma2", _SCALED),
    "gemma3": _windowed("gemma3_text", _SCALED),
    "gpt_oss": _windowed("gpt_oss", _SMALL | _EXPERTS),
    "cohere2": _windowed("cohere2", _SMALL),
    "opt": Kind("opt", _PLAIN | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "gpt2": Kind("gpt2", _GPT2),
    "gptj": Kind("gptj", _GPT2 | {"rotary_dim": 4}),
    "gpt_neox": Kind("gpt_neox", _PLAIN | {"intermediate_size": 64}),
    "falcon": Kind("falcon", _PLAIN | {"new_decoder_architecture": False}),
    "stablelm": Kind("stablelm", _GATED),
    "olmo2": Kind("olmo2", _GATED),
    "smollm3": _windowed("smollm3", _SOME),
}


# What the default tests run: one kind for each way of cutting attention.
CORE = ("mistral", "gemma3", "gpt_oss", "qwen3")


def core_first(names):
    """Parameters of a test over kinds: those outside ``CORE`` are slow ones."""
    slow = pytest.mark.slow
    return [name if name in CORE else pytest.param(name, marks=slow) for name in names]


def tiny_module(name, **settings):
    """A random module of one kind, float64, always the same weights."""
    kind = KINDS[name]
    torch.manual_seed(name in ("llama", "gpt_neox", "stablelm"))  # their first draw repeats itself
    config = AutoConfig.for_model(kind.model_type, **kind.config | settings)
    # The fused ways of running experts know no float64.
    experts = {"experts_implementation": "eager"} if "num_local_experts" in kind.config else {}
    module = AutoModelForCausalLM.from_config(config, **experts).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(6.0)
    return module


@functools.cache
def tiny_pair_of(name):
    """A target and a draft that is the target with a little noise."""
    target = tiny_module(name)
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * parameter.std() * noise if parameter.numel() > 1 else 0)
    cpu = torch.device("cpu")
    return HuggingFaceModel(target, VOCAB, cpu), HuggingFaceModel(draft, VOCAB, cpu)


def long_requests(count, new_tokens):
    """Prompts of 5 to 80 random tokens, well beyond a window and well within one."""
    generator = torch.Generator().manual_seed(0)
    lengths = [5 + 75 * index // max(count - 1, 1) for index in range(count)]
    prompts = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    return [Request(f"p{i}", tuple(prompt), new_tokens) for i, prompt in enumerate(prompts)]


def generated(module, requests, **how):
    """Answers of transformers' own ``generate``, greedy unless told."""
    return [
        module.generate(
            torch.tensor([request.prompt_ids]),
            attention_mask=torch.ones((1, len(request.prompt_ids)), dtype=torch.long),
            max_new_tokens=request.max_new_tokens,
            eos_token_id=list(request.stop_ids) or None,
            **{"do_sample": False, "pad_token_id": 0} | how,
        )[0, len(request.prompt_ids) :].tolist()
        for request in requests
    ]


def log_likelihood(module, request, answer):
    """What one plain pass says of an answer."""
    start = len(request.prompt_ids)
    ids = torch.tensor([[*request.prompt_ids, *answer]])
    with torch.inference_mode():
        log_p = module(input_ids=ids).logits[0, start - 1 : -1].log_softmax(dim=-1)
    return log_p.gather(1, ids[0, start:, None]).sum().item()
