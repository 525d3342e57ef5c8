"""The law of a policy's trees: as the policy grows them, and as ``definitions`` has them."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial

import torch

from spec_bench.audit.catalogue import WARM
from spec_bench.audit.decoders import enumerate_outcomes, make_random_heads
from spec_bench.audit.toys import make_random_markov_model
from spec_bench.core.host_device import CommittedTokens
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.config import are_compatible
from spec_bench.draft.base import DraftResources, DraftState, drafter
from spec_bench.records.types import Request
from spec_bench.tree.base import GrownTree, GrowthContext
from tests.toys import HistoryModel, random_history
from tests.tree.definitions import DEFINITIONS, Draft


@dataclass(frozen=True)
class Bed:
    """What trees grow on."""

    draft: Draft  # what is proposed, for the definition
    models: list[HistoryModel]  # which say so, where they are draft models
    drafting: DraftState  # the same, for the policy; its rows have started


def drafters(tree):
    """Those whose trees differ: draft models, or all that the policy is for."""
    fitting = {
        kind: each for kind, each in drafter.items() if are_compatible(each, type(tree.policy))
    }
    policy = tree.policy
    wide = isinstance(policy, GrownTree) and max(policy.shape.children, default=0) > 1
    found = [kind for kind, each in fitting.items() if not (wide and each.single)]
    return ["language_model"] if "language_model" in found else found


def bed(tree, settings, kind="", rows=1):
    """Drafts whose laws hang on three tokens, or those of a drafter that the policy is for."""
    kind = kind or drafters(tree)[0]
    (plan, *_) = drafter[kind].audit_cases(tree.drafts)
    models = [random_history(tree.vocab, seed) for seed in range(tree.drafts)]
    logits = partial(_behind, models, tree.prompt)
    target, heads = make_random_markov_model(tree.vocab, seed=0), None
    if drafter[kind].heads is not None:
        heads = make_random_heads(target, kind, seed=0)
        logits = partial(_guessed, target, heads, tree.prompt)
    caches = [model.allocate(rows, 64) for model in models]
    drafting = plan.make_state(DraftResources(target, models, caches, heads, rows))
    for row in range(rows):
        drafting.start_row(row, tree.prompt)
        drafting.observe_prompt(row, 0, _hidden(target, tree.prompt[:-1]))
    draft = Draft(tree.prompt, settings, logits, tree.vocab, tree.drafts, kind)
    return Bed(draft, models, drafting)


def _behind(models, prompt, path, draft):
    return models[draft].logits[models[draft].find_logits_index((*prompt, *path))]


def _hidden(target, said):
    """[T, D] hidden states of the target."""
    tokens, places = torch.tensor([said]), torch.arange(len(said))[None]
    states = torch.nn.functional.one_hot(
        target.find_hidden_state_indices(tokens, places), target.hidden_size
    )
    return states[0].double()


@torch.no_grad()
def _guessed(target, head, prompt, path, draft):
    """The logits of a recurrent head behind a path, which takes in root and path one by one."""
    x = _hidden(target, prompt[:-1])[-1]
    state = torch.zeros_like(x)
    for token in (prompt[-1], *path):
        state = head.update_state(state, target.embed(torch.tensor(token)).double())
    return head(x, state)[: target.vocab_size]


def planted(tree, settings, drafting, draws, rows=1):
    """The trees of started rows."""
    assert isinstance(tree.policy, GrownTree)
    committed = CommittedTokens([tree.prompt] * rows)
    tree.policy.device_inputs(drafting, committed)
    context = GrowthContext(drafting, committed, torch.device("cpu"), settings, draws)
    return tree.policy.grow_tree(context)


def forest(tree, row=0):
    """A row's tree as definitions write it; a node that is there sees its own path and no more."""
    children = defaultdict(list)
    for node in range(1, tree.shape.size):
        if tree.valid[row, node]:
            above = int(tree.parent[row, node])
            assert tree.valid[row, above]
            sees = {*tree.ancestors[row, above].nonzero().flatten().tolist(), node}
            assert {*tree.ancestors[row, node].nonzero().flatten().tolist()} == sees
            children[above].append(node)

    def below(node):
        return tuple((int(tree.tokens[row, child]), below(child)) for child in children[node])

    return below(0)


def nodes_of(forest, above=()):
    """The paths to all nodes, copies included, in order."""
    below = [((*above, token), each) for token, each in forest]
    return sorted(node for path, each in below for node in (path, *nodes_of(each, path)))


def likeliest(policy, model, prompt):
    """The one tree that a definition makes of a model where nothing is drawn."""
    draft = Draft(prompt, WARM, partial(_behind, [model], prompt), model.vocab_size, 1, "")
    return DEFINITIONS[policy.name](policy, draft, None)


def grown(tree, settings, drafting=None, kind=""):
    """The law of the trees that a policy grows, over all its draws."""
    own = drafting or bed(tree, settings, kind).drafting
    return _summed(lambda draws: forest(planted(tree, settings, own, draws)))


def defined(definition, tree, settings, kind=""):
    """The law of the trees that a definition makes."""
    draft = bed(tree, settings, kind).draft
    return _summed(lambda draws: definition(tree.policy, draft, draws.choose_alternative))


def drafted_beams(config, tree):
    """The law of the layers that a decoder of beams drafts, each beam as its text."""
    models = bed(tree, WARM).models
    built = config.build(models[0], models[: config.drafts], WARM)
    assert isinstance(built, BeamDecoder)
    vocab = tree.vocab

    def drafted(draws):
        rows = built.prefill_requests([Request("law", tree.prompt, built.depth + 1)], seed=0)
        forest, parents, _ = built._begin_iteration(rows)
        layers = [[()]]
        for cells in built._draft_layers(forest, parents, draws).cells if built.depth else ():
            layers.append(
                [(*layers[-1][cell // vocab], cell % vocab) for cell in cells[0].tolist()]
            )
        return tuple(map(tuple, layers[1:]))

    return _summed(drafted)


def _summed(make):
    law = defaultdict(float)
    for probability, made in enumerate_outcomes(make):
        law[made] += probability
    return law


def distance(one, other):
    """The largest difference of a tree's probabilities."""
    return max(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in {*one, *other})


class ManyDraws:
    """Draws of many rows from one generator, of what is not enumerable: the noise itself."""

    def __init__(self, seed):
        self._generator = torch.Generator().manual_seed(seed)

    def gumbel(self, like, counts=None, best=None):
        uniforms = torch.rand(like.shape, generator=self._generator, dtype=torch.float64)
        return -(-uniforms.log()).log()


def counted(tree, settings, rows, times):
    """How often each tree was grown, ``rows`` at a time."""
    drafting, found = bed(tree, settings, rows=rows).drafting, Counter()
    for seed in range(times):
        made = planted(tree, settings, drafting, ManyDraws(seed), rows)
        parts = torch.cat([made.tokens, made.parent, made.valid], dim=1)
        _, kinds = torch.unique(parts, dim=0, return_inverse=True)
        for kind, count in enumerate(kinds.bincount().tolist()):
            found[forest(made, int((kinds == kind).nonzero()[0]))] += count
    return found
