"""What a head that learns from sequences learns on is what it drafts with."""

import copy
import functools

import pytest
import torch

from spec_bench.core.host_device import CommittedTokens
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.network import HeadPlan
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.records.types import Request
from spec_bench.train.batches import SequenceBatches
from spec_bench.train.dialogues import Dialogue
from spec_bench.train.loop import measure_accuracy, run_training
from spec_bench.train.train import select_frequent_answer_tokens, wrap_for_training
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import HEADS as ALL_HEADS
from tests.heads import p_eagle_head

from . import tiny
from .test_command_line import Interrupted, equal, lines
from .tiny import CPU, forgetful_target, two_streams

GREEDY = SamplingSettings(temperature=0, probability_dtype="float64")
K = 3
IDS = tuple(range(5, 17))
KINDS = ["eagle", "eagle3", "mtp", "dflash", "p_eagle"]
HEADS = ALL_HEADS | {"p_eagle": functools.partial(p_eagle_head, own_inputs=False)}


def drafting_with(kind, head):
    target, _ = tiny_pair("llama", torch.float64)
    drafter = {"kind": "eagle3", "parallel": K} if kind == "p_eagle" else {"kind": kind}
    settings = decoder_settings("sd", str(K)) | {"drafter": drafter}
    return build_decoder(settings, target, [], GREEDY, heads=head)


def decoded(kind, head, request):
    """Per iteration each level's logits, on a chain of K tokens; and what was said."""
    built = drafting_with(kind, head)
    reserve, trees = built.reserve, []

    def recorded(slots):
        reserve(slots)
        own = built.draft_state
        root, below = own.root_logits, own.frontier_logits
        own.root_logits = lambda *given: trees.append([root(*given)]) or trees[-1][0]
        own.frontier_logits = lambda *given: trees[-1].append(below(*given)) or trees[-1][-1]

    built.reserve = recorded
    (answer,) = built.generate([request], 0)
    return trees, answer


def learned(kind, head, ids):
    """Logits of K steps at every row of one sequence, as training runs them."""
    target, _ = tiny_pair("llama", torch.float64)
    trainee = wrap_for_training(head, target, K)
    dialogue = Dialogue(ids, (True,) * len(ids))
    batch = SequenceBatches(
        target, [dialogue], K, trainee.get_target_layers(target.blocks)
    ).make_batch([0])
    hidden, embedded = batch.hidden_states.double(), batch.embeddings.double()
    with torch.no_grad():
        return list(
            trainee.iter_guess_logits(batch._replace(hidden_states=hidden, embeddings=embedded))
        )


@pytest.mark.parametrize("kind", KINDS)
def test_trainings_forward_is_decodings(kind):
    head = HEADS[kind](32, VOCAB).double()
    compared = dict.fromkeys(range(K), 0)
    for request in random_requests(4, 16):
        trees, answer = decoded(kind, head, request)
        ids = (*request.prompt_ids, *answer.tokens)
        steps, root = learned(kind, head, ids), len(request.prompt_ids) - 1
        for levels, step in zip(trees, answer.steps, strict=True):
            for depth in range(min(step.accepted + 1, K)):
                row = root - 1
                if 0 <= row < len(ids) - 2:  # what training has no token for ends it
                    assert_same_logits(levels[depth][0, 0, 0], steps[depth][row])
                    compared[depth] += 1
            root += step.accepted + 1
    assert compared[0] > 20


@pytest.mark.parametrize("kind", KINDS)
def test_what_would_be_accepted_is_held_against_the_targets_own_law(kind):
    target, _ = tiny_pair("llama")
    head, ids = HEADS[kind](32, VOCAB), IDS
    learner = wrap_for_training(head, target, K)
    dialogue = Dialogue(ids, (True,) * len(ids))
    batches = SequenceBatches(target, [dialogue], K, learner.get_target_layers(target.blocks))
    measured = measure_accuracy(learner, batches, [0], 1)
    with torch.no_grad():
        p = target.module(torch.tensor([ids])).logits[0].softmax(dim=-1)
        steps = [
            logits.softmax(dim=-1) for logits in learner.iter_guess_logits(batches.make_batch([0]))
        ]
    for step, q in enumerate(steps):
        rows = range(len(ids) - 2 - step)  # token t + 2 + step must be there
        shared = [float(torch.minimum(p[t + 1 + step], q[t]).sum()) for t in rows]
        assert measured.overlaps[step] == pytest.approx(sum(shared) / len(shared), abs=1e-5)
        assert len(rows) == measured.counts[step]
        assert 0.01 < measured.overlaps[step] < 0.99


def path_drafted(kind, head):
    """A decoder that has drafted along a given path, K levels deep; and each level's logits."""
    built = drafting_with(kind, head)
    built.prefill_requests([Request("x", IDS[:6], 4)], 0)
    committed, drafting = CommittedTokens([list(IDS[:6])]), built.draft_state
    drafting.device_inputs(committed)
    tree = Tree(built.policy.shape, committed.roots.get_tensor(CPU))
    found = [drafting.root_logits(committed)]
    for depth, token in enumerate(IDS[6 : 6 + K], start=1):
        level = torch.tensor([[token]])
        tree.add_level(level, torch.zeros(1, dtype=torch.long), level >= 0, None)
        found += [drafting.frontier_logits(tree, committed)] if depth < K else []
    return built, committed, tree, found


def assert_same_logits(found, expected):
    """But for tokens that cannot be; features are kept in single precision by training."""
    there = expected.isfinite()
    assert torch.equal(there, found.isfinite())
    torch.testing.assert_close(found[there], expected[there], rtol=1e-5, atol=1e-5)


def test_a_head_that_is_right_is_compared_at_every_depth():
    head = HEADS["eagle3"](32, VOCAB).double()
    steps = learned("eagle3", head, IDS)
    found = path_drafted("eagle3", head)[-1]
    for depth in range(K):
        assert_same_logits(found[depth][0, 0, 0], steps[depth][4])


@pytest.mark.parametrize("kind", KINDS)
def test_behind_accepted_tokens_the_head_sees_the_targets_features_alone(kind):
    head = HEADS[kind](32, VOCAB).double()
    built, committed, tree, _ = path_drafted(kind, head)
    drafting, nodes, lengths = built.draft_state, [list(range(K + 1))], committed.lengths
    hidden = built._scorer.score(tree, lengths).hidden
    path = torch.tensor(nodes)
    drafting.observe_path(hidden, path, torch.tensor([K]))
    built._scorer.commit(lengths, nodes, path)
    drafting.commit(lengths, nodes, path, K)
    drafting.update_cached_counts(lengths, [K + 1], K)
    committed = CommittedTokens([list(IDS[: 7 + K])])
    drafting.device_inputs(committed)
    assert_same_logits(drafting.root_logits(committed)[0, 0, 0], learned(kind, head, IDS)[0][5 + K])


def target_of(kind):
    """Sure of something, where its own last layer alone can say so."""
    if kind not in ("mtp", "dflash"):
        return forgetful_target()
    module = copy.deepcopy(forgetful_target().module)
    with torch.no_grad():
        module.get_output_embeddings().weight.mul_(20)
    return HuggingFaceModel(module, tiny.VOCAB, CPU)


def trainee(kind, guesses=K, **given):
    torch.manual_seed(0)
    target = target_of(kind)
    config, masks = target.module.config.to_dict(), kind == "p_eagle"
    sizes = tiny.WIDTH, tiny.VOCAB, lambda: torch.empty(0), guesses, 1
    plan = HeadPlan(*sizes, target=config, ids=given.pop("ids", None), masks=masks)
    head = type(HEADS[kind](8, 8)).make_untrained(plan)
    return wrap_for_training(head, target, guesses, **given)


def training(folder, kind, steps, processes=None, **given):
    text = two_streams(48, 14)
    made = tiny.settings(folder, "medusa", K, learning_rate=1e-2, kind_of_head=kind)
    learner = trainee(kind, learned_steps=given.pop("learned", None), **given)
    target = target_of(kind)
    layers = {"eagle3": (0, 0, 0, -1), "dflash": (0, -1)}  # it has one block
    layers = layers.get("eagle3" if kind == "p_eagle" else kind, (-1,))

    sides = (SequenceBatches(target, part, K, layers, 8) for part in (text[:40], text[40:]))
    return tiny.planned(made, learner, *sides, steps, processes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_the_targets_own_law(kind, tmp_path):
    plan = training(tmp_path, kind, 20)
    run_training(plan)
    losses = [float(row["loss"]) for row in lines(plan.settings.checkpoint_folder)]
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_was_stopped_ends_with_the_same_weights(kind, tmp_path):
    noise = {"noise": 0.1, "learned": 2}
    whole = training(tmp_path / "whole", kind, 6, **noise)
    run_training(whole)
    with pytest.raises(KeyboardInterrupt):
        run_training(training(tmp_path / "cut", kind, 6, Interrupted(4), **noise))
    again = training(tmp_path / "cut", kind, 6, **noise)
    run_training(again)
    assert lines(again.settings.checkpoint_folder) == lines(whole.settings.checkpoint_folder)
    assert equal(whole.trainee, again.trainee)


def test_a_smaller_vocabulary_is_the_answers_most_frequent_tokens():
    dialogues = [Dialogue((9, 3, 3, 5, 7), (False, True, True, True, False))]
    assert select_frequent_answer_tokens(dialogues, 2) == (3, 5)
    head = trainee("eagle3", ids=(3, 5)).heads
    logits = head.compute_logits(torch.randn(1, tiny.WIDTH), lambda x: x, tiny.VOCAB)
    assert logits.isfinite().nonzero()[:, 1].tolist() == [3, 5]


def test_positions_whose_best_token_the_head_lacks_teach_nothing():
    learner = trainee("eagle3", ids=(3, 5))
    project = learner._project
    states = torch.randn(40, tiny.WIDTH)
    best = project(states).argmax(-1)
    law, known = learner._compute_target_probs_and_in_vocabulary(states)
    assert known.tolist() == [token in (3, 5) for token in best.tolist()]
    loss, _ = learner._compute_losses_and_best(torch.randn(40, tiny.WIDTH), states, law, known)
    assert torch.equal(loss > 0, known)
