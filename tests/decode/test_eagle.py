"""EAGLE heads on the engine: lossless, batch-free, their features the target's own."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.audit.catalogue import SETTINGS, WARM, tree_cases
from spec_bench.audit.decoders import FALSE_ALARM_RATE, chi_square, enumerated_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.decode.decoder import Decoder
from spec_bench.tree.chain import Chain
from tests.decode.test_greedy import BATCHES, differences_from_generate
from tests.families import ARCHITECTURES, VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import HEADS, heads_of

LAW = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")
NAMES = (
    "eagle",
    "eagle2",
    "eagle3",
    "eagle_rsd_s",
    "eagle_traversal",
    "mtp",
    "dflash",
    "dflash_ddtree",
    "p_eagle",
)
FAST = {("llama", "eagle", 4), ("opt", "eagle3", 1), ("llama", "dflash_ddtree", 4)}
GREEDY = [
    pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
    for case in [(a, n, b) for a in ARCHITECTURES for n in NAMES for b in BATCHES]
]


def decoder_of(name, settings, architecture="llama", dtype=torch.float32, rows=1, **changes):
    target, _ = tiny_pair(architecture, dtype)
    decoder = decoder_settings(name) | changes
    head = heads_of(decoder["drafter"], target.hidden_size, VOCAB).to(dtype)
    built = build_decoder(decoder, target, [], settings, rows, heads=head)
    assert isinstance(built, Decoder)
    return built


@pytest.mark.parametrize(("architecture", "name", "batch"), GREEDY)
def test_greedy_output_equals_generate(architecture, name, batch):
    built = decoder_of(name, SamplingSettings(temperature=0), architecture, rows=batch)
    differences = differences_from_generate(built, architecture, batch)
    assert all(difference.near_tie for difference in differences), differences
    assert len(differences) <= 1


@pytest.mark.parametrize(
    "name", ["eagle", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_tokens_do_not_depend_on_the_batch_or_the_order(name):
    requests = random_requests(5, 12)

    def answers(asked, rows, queue):
        built = decoder_of(name, LAW, dtype=torch.float64, rows=rows)
        return {
            generation.prompt_id: generation.tokens
            for start in range(0, len(asked), queue)
            for generation in built.generate(asked[start : start + queue], 3)
        }

    alone = answers(requests, 1, 1)
    assert answers(requests, 3, 5) == alone  # rows join and move as others end
    assert answers(requests[::-1], 3, 3) == alone


KINDS = ("eagle", "eagle3", "mtp", "dflash")
CASES = [case for case in tree_cases("exact") if case.config.drafter.kind in KINDS]
SHOWN = (
    "eagle3: chain 2 + recursive",
    "eagle3: widths 2-1, without replacement + recursive",
    "eagle: chain 2 + traversal",
    "eagle3: iid_paths 2x2, i.i.d. + recursive",
    "eagle3: sampled_list 3",
    "mtp: chain 2 + recursive",
    "dflash: chain 2 + recursive",
)


def test_all_heads_are_audited_on_every_tree_that_grows_level_by_level():
    trees = {
        kind: {c.config.tree.name for c in CASES if c.config.drafter.kind == kind} for kind in HEADS
    }
    assert trees["eagle"] == trees["eagle3"] == trees["mtp"] == trees["dflash"]
    assert trees["eagle"] >= {"chain", "widths", "iid_paths", "stochastic_beam", "sampled_list"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=[] if case.name.startswith(SHOWN[:3] + SHOWN[-1:]) else pytest.mark.slow
        )
        for case in CASES
        if case.tree.enumerable and "3-1" not in case.name
    ],
    ids=lambda case: case.name,
)
def test_one_iteration_has_exactly_the_chains_law(case):
    """EAGLE-3's head knows two of the three tokens."""
    for label, settings in case.settings():
        if label not in list(SETTINGS)[:2] and not case.name.startswith(SHOWN):
            continue
        error, count = enumerated_error(
            case.config, settings, vocab=case.tree.vocab, prompt=case.tree.prompt
        )
        assert error <= TOLERANCE, label
        assert count >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.tree.enumerable], ids=lambda case: case.name
)
def test_several_iterations_in_a_batch_follow_the_chain(case):
    assert chi_square(case.config, WARM, samples=4000, seed=1) >= FALSE_ALARM_RATE


def test_a_prompt_of_one_token_is_continued_exactly():
    (case,) = [c for c in CASES if c.name.startswith("eagle3: chain 2 + traversal")]
    error, _ = enumerated_error(case.config, WARM, vocab=3, prompt=(1,))
    assert error <= TOLERANCE


def test_a_reduced_vocabulary_that_is_not_mapped_back_is_caught():
    """Tokens drawn from the right law, the walk told of the law one token further."""
    (case,) = [c for c in CASES if c.name.startswith("eagle3: chain 2 + traversal")]

    class Unmapped(Chain):
        def grow(self, tree, scores, draws):
            super().grow(tree, scores, draws)
            law = tree.q[-1]
            assert law is not None
            tree.q[-1] = law.roll(1, dims=-1)

    def unmap(built):
        built.policy = Unmapped(2)

    error, _ = enumerated_error(case.config, WARM, vocab=3, alter=unmap)
    assert error > 1e-3


def test_the_cache_of_the_head_is_counted():
    built = decoder_of("eagle", LAW)
    assert built.heads is not None
    slots = built.slots_needed(10, 5)
    own = 2 * 8 * 1 * 4  # keys and values of one key head of 8, float32
    assert built.cache_bytes(10, 5) == slots * (built.target.bytes_per_slot + own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafter": {"kind": "eagle3", "layer_ids": "third"}}, "layer_ids must be one of"),
        ({"drafter": {"kind": "eagle", "layer_ids": "input"}}, "layer_ids does not belong to"),
        ({"tree": {"policy": "head_beams", "width": 2, "depth": 2}}, "'eagle' does not go with"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        read_decoder(decoder_settings("eagle") | change)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_in_half_precision_too_only_differences_of_positions_matter(kind):
    head = HEADS[kind](16, VOCAB).to(torch.bfloat16)
    torch.manual_seed(1)
    feature, after = (torch.randn(1, 6, 16, dtype=torch.bfloat16) for _ in range(2))

    def attend(layer, q, k, v, scale=None):
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)

    near, far = (
        head.step(feature, after, first + torch.arange(6).unsqueeze(0), attend)
        for first in (0, 3000)
    )
    assert (near - far).abs().mean() < 0.02 * near.abs().mean()
