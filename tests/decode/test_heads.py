"""Drafts by heads, by own blocks, by looking up, and in another vocabulary than the target's."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from spec_bench.audit.catalogue import iter_audit_cases
from spec_bench.audit.decoders import enumerate_block_law, make_random_heads
from spec_bench.audit.rules import TOLERANCE
from spec_bench.audit.toys import MarkovModel, make_random_markov_model
from spec_bench.core.draws import SeededSource
from spec_bench.core.host_device import CommittedTokens
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.draft.base import DraftResources, list_head_kinds
from spec_bench.draft.cached_head import CachedHead
from spec_bench.draft.cut_vocabulary import cut_output_layers
from spec_bench.draft.heads import load_heads, save_heads
from spec_bench.draft.language_model import RetokenizedDraftState
from spec_bench.draft.own_blocks import OwnBlocks
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape
from spec_bench.engine.loading import wrap_loaded_model
from spec_bench.engine.mapped_model import (
    VocabularyMap,
    VocabularyMappedModel,
    map_reduced_outputs,
    map_reduced_vocabulary,
    map_tokenizers,
)
from spec_bench.engine.target_blocks import make_block_view
from spec_bench.engine.tree_pass import run_causal_tokens
from spec_bench.metrics.acceptance_lengths import compute_acceptance_lengths
from spec_bench.records.types import Request
from spec_bench.train.batches import PositionBatch
from spec_bench.train.training_heads import TrainableHead
from tests.families import GREEDY, VOCAB, built, decoder_settings, random_requests, tiny_pair
from tests.heads import medusa_heads, recurrent_head
from tests.said import naming, one_line
from tests.toys import random_history

WARM = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")
COLD = SamplingSettings(temperature=0, probability_dtype="float64")


def test_merging_prefixes_saves_nodes_and_changes_no_greedy_token():
    pair = tiny_pair("llama", torch.float64)
    merged, apart = (built(name, pair, COLD) for name in ("redrafter", "redrafter apart"))
    saved = 0
    for request in random_requests(6, 20):
        (one,), (other,) = merged.generate([request], 1), apart.generate([request], 1)
        assert one.tokens == other.tokens
        for ours, theirs in zip(one.steps, other.steps, strict=True):
            assert ours.accepted == theirs.accepted
            assert ours.nodes <= theirs.nodes
            saved += theirs.nodes - ours.nodes
    assert saved > 0


def test_heads_see_the_state_from_which_the_target_chose_the_root():
    target, _ = tiny_pair("llama", torch.float64)
    decoder, seen = built("medusa", (target,), COLD), []
    decoder.heads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    checked = 0
    for request in random_requests(6, 20):
        seen.clear()
        (answer,) = decoder.generate([request], 0)
        tokens, position = answer.tokens, 0
        for state, step in zip(seen, answer.steps, strict=True):
            if position:  # the first root is the prompt's last token, which nobody chose
                with torch.inference_mode():
                    chosen = int(target.module.lm_head(state[0]).argmax())
                assert chosen == tokens[position - 1]
                checked += 1
            position += step.accepted + 1
    assert checked > 50


def test_a_row_of_one_token_sees_no_state_of_the_row_before():
    decoder = built("medusa", tiny_pair("llama"), GREEDY)
    decoder.prefill_requests([Request("p", (1, 2, 3), 4)], 0)
    assert decoder.draft_state._hidden[0].any()
    decoder.draft_state.start_row(0, (1,))
    assert not decoder.draft_state._hidden[0].any()


def test_caches_of_what_guesses_several_tokens_at_once_have_room_for_them(monkeypatch):
    decoder, asked = built("dflash", tiny_pair("llama"), GREEDY), {}
    made = decoder.pool.get_or_grow_cache

    def noted(role, model, rows, slots):
        asked[role] = slots
        return made(role, model, rows, slots)

    monkeypatch.setattr(decoder.pool, "get_or_grow_cache", noted)
    decoder.reserve(20)
    assert asked == {"target": 20, "heads": 20 + decoder.heads.shape.block}


def test_typical_acceptance_is_marked_approximate_and_exact_rules_exact():
    marks = [
        built(name, tiny_pair("llama")).lossless
        for name in ("medusa", "redrafter", "medusa_typical")
    ]
    assert marks == ["exact", "exact", "approximate"]


def test_the_memory_bound_speed_up_counts_the_heads_own_parameters():
    medusa, redrafter = (built(name, tiny_pair("llama")) for name in ("medusa", "redrafter"))
    assert (medusa.draft_calls, redrafter.draft_calls) == (1, 3)
    expected = medusa.heads.parameter_count / medusa.target.parameters
    assert medusa.parameter_ratio == pytest.approx(expected)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (None, "uses medusa heads, got none"),
        (recurrent_head(32, VOCAB), "got redrafter heads: set pair.heads.medusa"),
        (medusa_heads(16, VOCAB), "for hidden states of 16"),
    ],
)
def test_heads_of_another_model_are_refused(heads, message):
    target, _ = tiny_pair("llama")
    with pytest.raises(ValueError, match=message):
        build_decoder(decoder_settings("medusa"), target, [], WARM, heads=heads)


@pytest.mark.parametrize(("guesses", "levels"), [(1, 1), (2, 2), (5, 4)])
def test_a_listed_tree_is_cut_to_the_levels_that_its_heads_guess(guesses, levels):
    target, _ = tiny_pair("llama")
    settings, heads = decoder_settings("medusa"), medusa_heads(32, VOCAB, guesses)
    config = read_decoder(settings)
    whole = config.tree.rank_paths
    built = build_decoder(settings, target, [], WARM, heads=heads)
    assert built.policy.rank_paths == tuple(path for path in whole if len(path) <= levels)
    said = f"cut to {built.nodes} of its {len(whole)} nodes, as the heads guess {levels} tokens"
    assert config.describe_tree_cut(built) == ("" if levels == 4 else f"the tree is {said}")


def test_medusas_published_layout_is_read_whatever_its_config_understates(tmp_path):
    made = medusa_heads(16, VOCAB, 5)
    _, weights, config = made.to_public_checkpoint()
    torch.save(weights, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps(config | {"medusa_num_heads": 2}))
    found = load_heads(str(tmp_path), torch.device("cpu"), torch.float32)
    assert found.shape == made.shape
    assert all(map(torch.equal, found.parameters(), made.parameters()))


def of_blocks(family="llama", temperature=0.0, **kept):
    settings = decoder_settings("own_blocks")["drafter"] | kept
    sampling = SamplingSettings(temperature=temperature)
    return built("own_blocks", tiny_pair(family, torch.float64), sampling, 2, drafter=settings)


def tokens(decoder):
    return [each.tokens for each in decoder.generate(random_requests(4, 16), seed=0)]


@pytest.mark.parametrize("family", ["llama", "opt"])
@pytest.mark.parametrize("kept", [{"first": 1}, {"kept": (0, 2)}, {"kept": (1,)}, {}])
def test_whatever_is_kept_the_text_is_the_targets(family, kept):
    pair = tiny_pair(family, torch.float64)
    for part in filter(lambda each: hasattr(each, "layer_idx"), pair[0].module.modules()):
        part.forward = part.forward  # where transformers 5.0 leaves it
    plain = built("ar", pair, GREEDY, 2)
    assert tokens(of_blocks(family, **kept)) == tokens(plain)


def test_all_blocks_accept_all():
    decoder = of_blocks(temperature=1.0, first=3)
    (found,) = decoder.generate(random_requests(1, 16), seed=0)
    assert [step.accepted for step in found.steps] == [3, 3, 3, 3]
    assert decoder.parameter_ratio == 1.0


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_the_first_blocks_keep_what_the_target_keeps_of_them(family):
    target, _ = tiny_pair(family)
    view = make_block_view(target, (0, 1))
    caches = [each.allocate(1, 8) for each in (target, view)]
    for each, cache in zip((target, view), caches, strict=True):
        with torch.inference_mode():
            run_causal_tokens(each, cache, [0], torch.tensor([[1, 2, 3, 4]]))
    for layer in range(2):
        for kept in ("keys", "values"):
            whole, part = (getattr(cache.layers[layer], kept) for cache in caches)
            assert torch.equal(whole[:, :, :4], part[:, :, :4])
    assert (target.blocks, view.parameters < target.parameters) == (3, True)


def test_blocks_that_the_target_lacks_are_named():
    with pytest.raises(ValueError, match="blocks 0 to 2, got 3"):
        of_blocks(kept=(0, 3))


GEMMA = {
    **{"vocab_size": 64, "vocab_size_per_layer_input": 64, "hidden_size": 32, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_layer_input": 8},
    **{"num_hidden_layers": 4, "num_kv_shared_layers": 2},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
FAMILIES = {
    "gemma3n_text": {"intermediate_size": [64] * 4, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {"intermediate_size": 64, "global_head_dim": 8},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_whose_blocks_cannot_be_left_out_is_refused_in_one_line(name):
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **GEMMA, **FAMILIES[name]))
    target = wrap_loaded_model(module, name)
    said = naming("blocks 0, 2, 3 of the target", type(module).__name__, "shape")
    with one_line(said):
        OwnBlocks().make_own_model(target)


def test_by_default_every_other_block_with_the_first_and_the_last():
    assert OwnBlocks().get_kept_blocks(6) == (0, 2, 4, 5)
    assert OwnBlocks().get_kept_blocks(5) == (0, 2, 4)
    assert OwnBlocks().get_kept_blocks(1) == (0,)


LOOKUPS = ("prompt_lookup", "lookup_vote", "suffix_lookup")
# Prompts that repeat themselves, so that there is something to look up.
REQUESTS = [
    Request(r.prompt_id, tuple(r.prompt_ids) * 3, 12 + 5 * (index % 3))
    for index, r in enumerate(random_requests(6, 1))
]


def answers(name, temperature, rows, **blocks):
    settings = SamplingSettings(temperature, top_k=3, probability_dtype="float64")
    decoder = built(name, tiny_pair("llama", torch.float64), settings, rows, **blocks)
    return decoder.generate(REQUESTS, seed=5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", LOOKUPS)
def test_the_text_is_plain_decodings_whatever_the_batch(name, temperature):
    plain = [g.tokens for g in answers("ar", temperature, 1)]
    alone = answers(name, temperature, 1)
    assert [g.tokens for g in alone] == plain
    assert [g.tokens for g in answers(name, temperature, 4)] == plain
    assert sum(step.accepted for g in alone for step in g.steps) > 5  # it did guess something


@pytest.mark.parametrize("name", [*LOOKUPS, "lookup_or_draft"])
def test_lengths_in_other_tools_words_do_not_hang_on_the_batch(name):
    alone, together = answers(name, 0.7, 1), answers(name, 0.7, 3)
    assert [g.tokens for g in together] == [g.tokens for g in alone]
    assert compute_acceptance_lengths(together) == compute_acceptance_lengths(alone)
    assert len({step.nodes for g in alone for step in g.steps}) > 1  # trees of several sizes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", LOOKUPS)
def test_whole_paths_are_verified_where_no_row_has_a_guess(name, rows):
    found = answers(name, 0.7, rows, verifier={"rule": "traversal"})
    steps = [step for each in found for step in each.steps]
    assert any(not step.nodes for step in steps)
    assert sum(step.accepted for step in steps) > 5


def test_positions_keep_their_numbers_when_a_walk_stops_early():
    def drawn(steps):
        generator, tokens = torch.Generator().manual_seed(3), []
        law = torch.full((1, 1000), 0.001)
        for emitted in steps:
            draws = SeededSource([generator])
            positions = draws.prepare_positions(4)
            tokens += [int(positions.sample_at(level, law)) for level in range(emitted)]
            draws.advance([emitted])
        return tokens

    assert drawn([4, 4]) == drawn([1] * 8) == drawn([3, 1, 2, 2])
    plain = torch.Generator().manual_seed(3)
    law = torch.full((1, 1000), 0.001)
    assert drawn([4, 4]) == [int(SeededSource([plain]).verdict(()).token(law)) for _ in range(8)]


def test_without_a_match_an_iteration_is_one_of_plain_decoding():
    decoder = built("prompt_lookup", tiny_pair("llama"), GREEDY)
    (row,) = decoder.prefill_requests([Request("0", (1, 2, 3), 4)], seed=0)
    decoder.step([row])
    assert [(step.nodes, step.depth) for step in row.steps] == [(0, 0)]


V = 4
# The target's 0 and 2 are the draft's 3 and 0 or 1; the target's 1 is read in two parts and its 3
# as something else; the draft's 2 and 4 are nobody's.
MAP = VocabularyMap((3, 2, 0, 4), (2, 2, -1, 0, -1), {1: (4, 2)})
NARROW = map_reduced_vocabulary((3, 0), V)  # one token for all others
CUT = map_reduced_outputs((0, 2), V)
SETTINGS = {
    "temperature": SamplingSettings(0.7, probability_dtype="float64"),
    "top-k": SamplingSettings(1.3, top_k=2, probability_dtype="float64"),
    "top-p": SamplingSettings(1.0, top_p=0.7, probability_dtype="float64"),
}
CASES = {
    case.name: case.config
    for case in iter_audit_cases("exact")
    if case.config.drafts == 1 and case.tree.enumerable and case.config.drafter.kind != "redrafter"
}
WIDTHS = "widths 2-1, without replacement + recursive_rejection with replacement: false"
NAMES = (
    "chain 2 + recursive_rejection with replacement: false",
    "iid_paths 2x2, i.i.d. + k_seq",
    "chain 2 + traversal",
    "chain 2 + optimal",
    WIDTHS,
    f"pard: {WIDTHS}",
)


def draft_of(vocabulary, seed=7):
    known = len(vocabulary.target_ids) if vocabulary is not CUT else V
    chain = make_random_markov_model(known, seed)
    if vocabulary is CUT:
        chain = MarkovModel(chain.logits)
        chain.logits = chain.logits[..., [0, 2]]
    return VocabularyMappedModel(chain, vocabulary, V)


@pytest.mark.parametrize("vocabulary", [MAP, NARROW, CUT], ids=["strings", "d2t", "outputs"])
@pytest.mark.parametrize("name", NAMES)
def test_the_law_is_the_targets_whatever_the_draft_calls_its_tokens(name, vocabulary):
    target = make_random_markov_model(V, 3)
    if vocabulary is MAP and "pard" in name:
        with pytest.raises(ValueError, match="a draft with the target's tokenizer"):
            CASES[name].build(target, [draft_of(vocabulary)], COLD).reserve(9)
        return
    for said, settings in SETTINGS.items():
        built = CASES[name].build(target, [draft_of(vocabulary)], settings)
        got, expected, _ = enumerate_block_law(
            built,
            lambda prefix, length, s=settings: target.compute_continuation_law(
                prefix, length, settings=s
            ),
        )
        assert max(abs(got[t] - chance) for t, chance in expected.items()) < TOLERANCE, said


def test_a_recurrent_head_of_some_tokens_drafts_as_the_whole_one_cut_down_to_them(tmp_path):
    ids = torch.tensor([token for token in range(VOCAB) if token % 3])
    whole, target = recurrent_head(32, VOCAB), tiny_pair("llama", torch.float64)[0]
    some = RecurrentHead(whole.shape, ids)
    last = f"lm_head.{whole.shape.blocks}.weight"
    some.load_state_dict({k: v[ids] if k == last else v for k, v in whole.state_dict().items()})
    save_heads(some, tmp_path)
    some = load_heads(str(tmp_path), torch.device("cpu"), torch.float64)
    assert torch.equal(some.ids, ids)
    cut_output_layers(whole, ids.tolist(), torch.empty(0))
    beams = []
    for heads in (some, whole.double()):
        decoder = build_decoder(decoder_settings("redrafter"), target, [], COLD, 2, heads=heads)
        decoder.prefill_requests([Request("x", (3, 5), 4), Request("y", (7, 9), 4)], 0)
        with torch.inference_mode():
            beams.append(decoder.draft_state.search_beams([5, 9], 4, 3))
    assert torch.equal(*beams) and torch.isin(beams[0], ids).all()


def test_tokens_that_a_recurrent_head_does_not_know_teach_it_nothing():
    torch.manual_seed(0)
    heads = RecurrentHead(RecurrentShape(8, 6, 1), torch.tensor([1, 4]))
    x, embedded, learner = torch.randn(3, 8), torch.randn(3, 1, 8), TrainableHead(heads, 1)
    losses = learner(x, embedded, torch.tensor([[4], [2], [1]]))
    logits = next(heads.iter_guess_logits(x, embedded))[[0, 2]]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0]), reduction="sum")
    torch.testing.assert_close(losses.loss, expected.unsqueeze(0))
    batch = PositionBatch(x, embedded, torch.tensor([[4], [2], [1]]))
    whole = next(learner.iter_guess_logits(batch))
    assert whole.isfinite()[0].tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("kind", list_head_kinds())
def test_heads_that_keep_some_outputs_propose_those_and_the_law_stays(kind):
    config = next(
        case.config
        for case in iter_audit_cases("exact")
        if case.config.heads == kind and case.tree.enumerable
    )
    target = make_random_markov_model(V, 3)
    heads = make_random_heads(target, kind, 5)
    cut_output_layers(heads, (0, 2), torch.eye(target.hidden_size, dtype=torch.float64)[:V])
    settings = SETTINGS["temperature"]
    built = config.build(target, [], settings, heads=heads)
    got, expected, _ = enumerate_block_law(
        built, lambda *given: target.compute_continuation_law(*given, settings=settings)
    )
    assert max(abs(got[t] - chance) for t, chance in expected.items()) < TOLERANCE
    x = torch.ones(1, target.hidden_size, dtype=torch.float64)
    if not isinstance(heads, CachedHead):
        logits = next(heads.iter_guess_logits(x, torch.zeros(1, 2, target.hidden_size).double()))
    else:
        logits = heads.compute_logits(x[:, : heads.shape.hidden], lambda _: x.new_zeros(1, V), V)
    assert logits[0].isfinite().tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match="know none of these tokens"):
        cut_output_layers(make_random_heads(target, kind, 5), (99,), torch.eye(V))


@pytest.mark.parametrize(
    ("proposes", "expected"),
    [(MAP.target_ids, [1 / 3, 0, 2 / 3, 0]), ((2, -1, -1, 0, -1), [2 / 3, 0, 1 / 3, 0])],
)
def test_several_of_the_drafts_tokens_add_up_and_what_it_lacks_is_never_proposed(
    proposes, expected
):
    """Draft token 0 (probability .1), or with it 1 (.3), means 2; draft token 3 (.2) means 0."""
    chain = MarkovModel(
        torch.tensor([0.1, 0.3, 0.25, 0.2, 0.15], dtype=torch.float64).log().expand(2, 5, 5)
    )
    logits = VocabularyMappedModel(chain, VocabularyMap(MAP.draft_ids, proposes), V).forward(
        *(None, [0], torch.tensor([[2]]), torch.tensor([[0]])),
        torch.ones(1, 1, 1, dtype=torch.bool),
    )[0]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(logits[0, 0].softmax(-1), expected)


def test_a_context_is_respelled_within_its_bound_and_only_grows():
    draft = draft_of(MAP)
    assert draft.retokenise([0, 1, 2]) == [0, V + 4, V + 2, 2]
    assert draft.retokenise([1, 1, 1]) == [V + 4, V + 2, V + 4, V + 2, V + 4, V + 2]
    wide = VocabularyMappedModel(
        make_random_markov_model(5, 1),
        VocabularyMap(MAP.draft_ids, MAP.target_ids, {1: (4, 2, 3)}),
        V,
    )
    assert wide.retokenise([1, 0, 0, 1]) == [1, 0, 0, V + 4, V + 2, V + 3]
    for end in range(5):
        assert (
            wide.retokenise([1, 0, 0, 1][:end])
            == wide.retokenise([1, 0, 0, 1])[: (0, 1, 2, 3, 6)[end]]
        )


def given(draft):
    return DraftResources(draft, [draft], [draft.allocate(1, 16)], None, 1)


def test_a_draft_of_another_tokenizer_drafts_from_the_respelled_text():
    """The chain tells odd places from even ones: a token in two parts moves what comes behind."""
    draft = draft_of(MAP)
    drafting = RetokenizedDraftState(given(draft), draft)
    drafting.start_row(0, (0, 1, 2))
    committed = CommittedTokens([(0, 1, 2)])
    drafting.device_inputs(committed)
    chain = draft.inner
    own = chain.logits[3 % 2, 0]
    expected = draft._scatter_logits(own)
    torch.testing.assert_close(drafting.root_logits(committed)[0, 0, 0], expected)


def test_a_token_outside_a_short_vocabulary_is_read_as_the_one_for_all_others():
    assert (NARROW.draft_ids, NARROW.target_ids) == ((1, 2, 2, 0), (3, 0, -1))


def test_a_token_in_parts_is_read_as_its_last_where_they_do_not_fit():
    ours, theirs = (
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(tokens, merges)))
        for tokens, merges in (
            ({"a": 0, "b": 1, "c": 2, "ab": 3}, [("a", "b")]),
            ({"b": 0, "c": 1, "a": 2}, []),
        )
    )
    assert map_tokenizers(ours, theirs, 4) == VocabularyMap((2, 0, 1, 0), (1, 2, 0), {3: (2, 0)})


def test_a_token_in_parts_that_was_looked_up_is_read_in_parts_once_it_is_accepted():
    draft = VocabularyMappedModel(random_history(5, 7), MAP, V)

    def logits(drafting, text):
        committed = CommittedTokens([text])
        drafting.device_inputs(committed)
        return drafting.root_logits(committed)

    kept, fresh = (RetokenizedDraftState(given(draft), draft) for _ in range(2))
    kept.start_row(0, (0, 2))
    logits(kept, (0, 2))
    tree = Tree(TreeShape((1, 1), (1, 1)), torch.tensor([2]))
    for token in (1, 0):
        there = torch.ones((1, 1), dtype=torch.bool)
        tree.add_level(torch.tensor([[token]]), torch.tensor([0]), there, None)
        if token == 1:
            kept.frontier_logits(tree, CommittedTokens([(0, 2)]))
    kept.commit([1], [[0, 1]], torch.tensor([[0, 1, 1]]), 2)
    kept.update_cached_counts([1], [2], 2)
    fresh.start_row(0, (0, 2, 1, 3))
    assert torch.equal(logits(kept, (0, 2, 1, 3)), logits(fresh, (0, 2, 1, 3)))


@pytest.mark.parametrize(("label", "seed"), [("top-k", 4), ("top-p", 6)])
def test_a_draft_that_has_tokens_in_parts_decodes_in_a_batch_as_alone(label, seed):
    target, draft = random_history(V, seed), VocabularyMappedModel(random_history(5, 7), MAP, V)
    config = read_decoder(decoder_settings("lookup_or_draft"), SETTINGS[label])
    texts = [(1, 1, 0), (0, 2, 1), (2,), (1, 3, 3, 1), (3, 1), (2, 2, 0)]
    requests = [Request(str(i), texts[i % 6], 12 + 7 * (i % 3)) for i in range(18)]

    def decoded(rows):
        built = config.build(target, [draft], SETTINGS[label], rows)
        return [(each.tokens, each.steps) for each in built.generate(requests, 1)]

    assert decoded(3) == decoded(1)
