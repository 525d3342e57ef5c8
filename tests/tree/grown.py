"""Trees as decoders grow them: alone, or watched while prompts are decoded."""

import torch

from spec_bench.audit.catalogue import WARM
from spec_bench.core.draws import SeededSource
from spec_bench.core.host_device import CommittedTokens
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import DraftResources
from spec_bench.draft.language_model import LanguageModelDraftState
from spec_bench.records.types import Request
from spec_bench.tree.base import GrowthContext
from tests.families import decoder_settings
from tests.toys import HistoryModel, random_history

PROMPTS = [(1, 0, 2, 1), (0, 0, 1), (2, 2, 2, 0, 1)]


def planted(policy, model, prompts, settings=WARM, draws=None):
    rows = len(prompts)
    drafting = LanguageModelDraftState(
        DraftResources(model, [model], [model.allocate(rows, 64)], None, rows)
    )
    for row, prompt in enumerate(prompts):
        drafting.start_row(row, prompt)
    committed = CommittedTokens(prompts)
    drafting.device_inputs(committed)
    draws = draws or SeededSource(
        [torch.Generator().manual_seed(row) for row in range(len(prompts))]
    )
    return policy.grow_tree(
        GrowthContext(drafting, committed, torch.device("cpu"), settings, draws)
    )


REQUESTS = [Request(str(i), ((i % 3, 1, 2, 0) * (1 + i % 3)), 14 - i) for i in range(5)]


def watched(name, rows, settings=WARM, **tree):
    """A decoder over toys with a memory, its draft, and its trees with what stood before them."""
    target = random_history(3, seed=4)
    draft = HistoryModel(target.logits + random_history(3, seed=5).logits)
    given = decoder_settings(name)
    given["tree"] = {**given["tree"], **tree}
    decoder = build_decoder(given, target, [draft], settings, rows)
    seen = []
    step, walk, now = decoder.step, decoder.walk, []

    def stepping(active):
        now[:] = [tuple(row.tokens) for row in active]
        return step(active)

    def walking(scored, rule):
        seen.append((scored.tree, list(now)))
        return walk(scored, rule)

    decoder.step, decoder.walk = stepping, walking
    return decoder, draft, seen
