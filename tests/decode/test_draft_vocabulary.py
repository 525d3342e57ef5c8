"""Drafts that know other tokens than the target: the law stays, and q is the one drawn from."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from spec_bench.audit.catalogue import tree_cases
from spec_bench.audit.decoders import block_law, heads_on
from spec_bench.audit.rules import TOLERANCE
from spec_bench.audit.toys import MarkovModel, random_history, random_markov
from spec_bench.core.transfer import Committed
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.draft.base import Equipment, head_kinds
from spec_bench.draft.cached_head import CachedHead, keep_outputs
from spec_bench.draft.language_model import RespelledDrafting
from spec_bench.engine.mapped_model import (
    MappedModel,
    VocabularyMap,
    of_ids,
    of_outputs,
    of_tokenizers,
)
from spec_bench.records.types import Request
from tests.families import decoder_settings

V = 4
# The target's 0 and 2 are the draft's 3 and 0 or 1; the target's 1 is read in two parts and its 3
# as something else; the draft's 2 and 4 are nobody's.
MAP = VocabularyMap((3, 2, 0, 4), (2, 2, -1, 0, -1), {1: (4, 2)})
NARROW = of_ids((3, 0), V)  # one token for all others
CUT = of_outputs((0, 2), V)
SETTINGS = {
    "temperature": SamplingSettings(0.7, probability_dtype="float64"),
    "top-k": SamplingSettings(1.3, top_k=2, probability_dtype="float64"),
    "top-p": SamplingSettings(1.0, top_p=0.7, probability_dtype="float64"),
}
CASES = {
    case.name: case.config
    for case in tree_cases("exact")
    if case.config.drafts == 1 and case.tree.enumerable and case.config.drafter.kind != "redrafter"
}
NAMES = (
    "chain 2 + recursive_rejection with replacement: false",
    "iid_paths 2x2, i.i.d. + k_seq",
    "widths 2-1, without replacement + recursive_rejection with replacement: false",
    "stochastic_beam 3x2, without replacement + recursive_rejection with replacement: false",
    "chain 2 + traversal",
    "chain 2 + optimal",
)


def draft_of(vocabulary, seed=7):
    known = len(vocabulary.proposes) if vocabulary is not CUT else V
    chain = random_markov(known, seed)
    if vocabulary is CUT:
        chain = MarkovModel(chain.logits)
        chain.logits = chain.logits[..., [0, 2]]
    return MappedModel(chain, vocabulary, V)


@pytest.mark.parametrize("vocabulary", [MAP, NARROW, CUT], ids=["strings", "d2t", "outputs"])
@pytest.mark.parametrize("name", [name for name in NAMES if name in CASES])
def test_the_law_is_the_targets_whatever_the_draft_calls_its_tokens(name, vocabulary):
    target = random_markov(V, 3)
    for said, settings in SETTINGS.items():
        built = CASES[name].build(target, [draft_of(vocabulary)], settings)
        got, expected, _ = block_law(
            built, lambda prefix, length, s=settings: target.law(prefix, length, settings=s)
        )
        assert max(abs(got[t] - chance) for t, chance in expected.items()) < TOLERANCE, said


@pytest.mark.parametrize("kind", head_kinds())
def test_heads_that_keep_some_outputs_propose_those_and_the_law_stays(kind):
    config = next(
        case.config
        for case in tree_cases("exact")
        if case.config.heads == kind and case.tree.enumerable
    )
    target = random_markov(V, 3)
    heads = heads_on(target, kind, 5)
    keep_outputs(heads, (0, 2), torch.eye(target.hidden_size, dtype=torch.float64)[:V])
    settings = SETTINGS["temperature"]
    built = config.build(target, [], settings, heads=heads)
    got, expected, _ = block_law(built, lambda *given: target.law(*given, settings=settings))
    assert max(abs(got[t] - chance) for t, chance in expected.items()) < TOLERANCE
    x = torch.ones(1, target.hidden_size, dtype=torch.float64)
    if not isinstance(heads, CachedHead):
        logits = next(heads.guesses(x, torch.zeros(1, 2, target.hidden_size).double()))
    else:
        logits = heads.logits(x[:, : heads.shape.hidden], lambda _: x.new_zeros(1, V), V)
    assert logits[0].isfinite().tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match="know none of these tokens"):
        keep_outputs(heads_on(target, kind, 5), (99,), torch.eye(V))


def test_several_of_the_drafts_tokens_add_up_and_what_it_lacks_is_never_proposed():
    """Draft tokens 0 and 1 (probabilities .1 and .3) mean 2, draft token 3 (.2) means 0."""
    chain = MarkovModel(
        torch.tensor([0.1, 0.3, 0.25, 0.2, 0.15], dtype=torch.float64).log().expand(2, 5, 5)
    )
    logits = MappedModel(chain, MAP, V).forward(
        *(None, [0], torch.tensor([[2]]), torch.tensor([[0]])),
        torch.ones(1, 1, 1, dtype=torch.bool),
    )[0]
    expected = torch.tensor([0.2, 0.0, 0.4, 0.0], dtype=torch.float64) / 0.6
    torch.testing.assert_close(logits[0, 0].softmax(-1), expected)


def test_a_context_is_respelled_within_its_bound_and_only_grows():
    draft = draft_of(MAP)
    assert draft.respelled([0, 1, 2]) == [0, V + 4, V + 2, 2]
    assert draft.respelled([1, 1, 1]) == [V + 4, V + 2, V + 4, V + 2, V + 4, V + 2]
    wide = MappedModel(
        random_markov(5, 1), VocabularyMap(MAP.reads, MAP.proposes, {1: (4, 2, 3)}), V
    )
    assert wide.respelled([1, 0, 0, 1]) == [1, 0, 0, V + 4, V + 2, V + 3]
    for end in range(5):
        assert (
            wide.respelled([1, 0, 0, 1][:end])
            == wide.respelled([1, 0, 0, 1])[: (0, 1, 2, 3, 6)[end]]
        )


def given(draft):
    return Equipment(draft, [draft], [draft.allocate(1, 16)], None, 1)


def test_a_draft_of_another_tokenizer_drafts_from_the_respelled_text():
    """The chain tells odd places from even ones: a token in two parts moves what comes behind."""
    draft = draft_of(MAP)
    drafting = RespelledDrafting(given(draft), draft)
    drafting.start(0, (0, 1, 2))
    committed = Committed([(0, 1, 2)])
    drafting.needs(committed)
    chain = draft.inner
    own = chain.logits[3 % 2, 0]
    expected = draft._spread(own)
    torch.testing.assert_close(drafting.at_root(committed)[0, 0, 0], expected)


def test_a_token_outside_a_short_vocabulary_is_read_as_the_one_for_all_others():
    assert (NARROW.reads, NARROW.proposes) == ((1, 2, 2, 0), (3, 0, -1))


def test_a_token_in_parts_is_read_as_its_last_where_they_do_not_fit():
    ours, theirs = (
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(tokens, merges)))
        for tokens, merges in (
            ({"a": 0, "b": 1, "c": 2, "ab": 3}, [("a", "b")]),
            ({"b": 0, "c": 1, "a": 2}, []),
        )
    )
    assert of_tokenizers(ours, theirs, 4) == VocabularyMap((2, 0, 1, 0), (1, 2, 0), {3: (2, 0)})


def test_a_token_in_parts_that_was_looked_up_is_read_in_parts_once_it_is_accepted():
    draft = MappedModel(random_history(5, 7), MAP, V)

    def logits(drafting, text):
        committed = Committed([text])
        drafting.needs(committed)
        return drafting.at_root(committed)

    kept, fresh = (RespelledDrafting(given(draft), draft) for _ in range(2))
    kept.start(0, (0, 2))
    logits(kept, (0, 2))
    tree = Tree(TreeShape((1, 1), (1, 1)), torch.tensor([2]))
    for token in (1, 0):
        there = torch.ones((1, 1), dtype=torch.bool)
        tree.add_level(torch.tensor([[token]]), torch.tensor([0]), there, None)
        if token == 1:
            kept.at_frontier(tree, Committed([(0, 2)]))
    kept.commit([1], [[0, 1]], torch.tensor([[0, 1, 1]]), 2)
    fresh.start(0, (0, 2, 1, 3))
    assert torch.equal(logits(kept, (0, 2, 1, 3)), logits(fresh, (0, 2, 1, 3)))


@pytest.mark.parametrize(("label", "seed"), [("top-k", 4), ("top-p", 6)])
def test_a_draft_that_has_tokens_in_parts_decodes_in_a_batch_as_alone(label, seed):
    """In a batch the draft also runs tokens in parts that were looked up for other rows."""
    target, draft = random_history(V, seed), MappedModel(random_history(5, 7), MAP, V)
    config = read_decoder(decoder_settings("lookup_or_draft"), SETTINGS[label])
    texts = [(1, 1, 0), (0, 2, 1), (2,), (1, 3, 3, 1), (3, 1), (2, 2, 0)]
    requests = [Request(str(i), texts[i % 6], 12 + 7 * (i % 3)) for i in range(18)]

    def decoded(rows):
        built = config.build(target, [draft], SETTINGS[label], rows)
        return [(each.tokens, each.steps) for each in built.generate(requests, 1)]

    assert decoded(3) == decoded(1)
