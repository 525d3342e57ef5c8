"""What benchmarks share: the embedded pair, its prompts, nine decoders with their trees, recording.

Needs torch, transformers and PyYAML only, so that it runs where the rest is not installed.
"""

import json
from collections.abc import Collection
from pathlib import Path

import yaml

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import AnyDecoder, apply_tree_shorthand, build_decoder
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.loop import IterationCounts
from spec_bench.engine.cache import CachePool
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer
from spec_bench.records.types import Request

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ROOT / "spec_bench" / "embedded"
SPECS = {
    "ar": "-",
    "sd": "3",
    "spectr": "4x3",
    "specinfer": "2-2-2",
    "mcsd": "4-1-1",
    "mcsd_wor": "4-1-1",
    "mcns": "4-1-1",
    "rsd_c": "2-2-2",
    "rsd_s": "4x3",
}
# Of others, which have no tree of their own in ``conf/decoder``.
MORE_SPECS = {
    "medusa": "mc_sim_7b_63",
    "medusa_typical": "mc_sim_7b_63",
    "redrafter": "8x5",
    "redrafter_typical": "8x5",
    "beam_sampling": "4",
    "beam_search": "4",
    "dsbd": "4x2@0.9",
    "block": "3",
    "dflash": "7",
    "dflash_block": "7",
    "dflash_ddtree": "4x7@24",
}
FITTED = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0, 0]]
Models = tuple[HuggingFaceModel, HuggingFaceModel]


def embedded_pair(how: str = "none", device: str = "cpu", dtype: str = "float32") -> Models:
    """The shipped target and its distilled draft, their passes captured as ``how`` says."""
    folders = (EMBEDDED / "models" / name for name in ("target", "draft_distilled"))
    target, draft = (
        load_model(ModelSpec(str(folder), dtype, device, compile=how)) for folder in folders
    )
    return target, draft


def embedded_requests(count: int, new_tokens: int) -> list[Request]:
    """Prompts of the shipped XSum sample; nothing stops an answer but its length."""
    tokenizer = load_tokenizer(str(EMBEDDED / "models" / "target"))
    lines = (EMBEDDED / "tasks" / "xsum.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [f"Article: {json.loads(line)['document']}\nSummary:" for line in lines[:count]]
    ids = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    return [Request(str(i), prompt, new_tokens) for i, prompt in enumerate(ids)]


def decoder(
    name: str, models: Models, sampling: SamplingSettings, pool: CachePool | None = None
) -> Decoder:
    """A decoder of ``conf/decoder`` with the benchmark's tree."""
    settings = yaml.safe_load((ROOT / "conf" / "decoder" / f"{name}.yaml").read_text())
    drafts = [] if settings["drafter"]["kind"] in ("lookup", "first_match") else [models[1]]
    spec = apply_tree_shorthand(settings, SPECS.get(name))
    return build_decoder(spec, models[0], drafts, sampling, 1, pool)


def prepare(decoders: Collection[AnyDecoder], requests: list[Request]) -> None:
    """Records and warms up all decoders for requests; then counts how iterations run anew."""
    for each in decoders:  # all room first: what is recorded over a cache is lost when it grows
        each.check_and_reserve(requests)
    for each in decoders:
        each.check_and_reserve(requests)  # it sees which caches grew for others
        each.record_graphs(requests)
        each.generate(requests[: each.rows], 0)
        each.iteration_counts = IterationCounts()


def how_it_ran(decoder: AnyDecoder) -> dict[str, str]:
    """Whether graphs were replayed, and why a canary refused them; two columns."""
    recordings = getattr(decoder, "recordings", None)
    return {
        "passes": decoder.iteration_counts.recorded_share_text,
        "refused": recordings.refusal if recordings else "",
    }
