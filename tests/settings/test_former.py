"""Former names of what plug-ins use: they work, and warn."""

import dataclasses
import importlib

import pytest
import torch

from spec_bench.core.draws import SeededSource
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Drafter, DraftState
from spec_bench.measure.energy.meters import EnergyMeter
from spec_bench.records.types import Generation
from spec_bench.report.claims.ask import Comparison
from spec_bench.report.claims.contrast import Difference
from spec_bench.tree.base import GrownTree
from spec_bench.tree.chain import Chain


@pytest.mark.parametrize(
    ("module", "former", "name"),
    [
        ("spec_bench.draft.base", "Drafting", "DraftState"),
        ("spec_bench.draft.base", "Equipment", "DraftResources"),
        ("spec_bench.core.draws", "Draws", "RandomSource"),
        ("spec_bench.api", "Audited", "AuditReport"),
        ("spec_bench.api", "Compared", "ComparisonReport"),
        ("spec_bench.api", "Decoded", "Answer"),
        ("spec_bench.api", "Recommended", "Recommendation"),
        ("spec_bench.api", "Seconds", "AnswerTimes"),
        ("spec_bench.metrics", "Sums", "PromptSums"),
    ],
)
def test_an_object_is_found_by_its_former_name_with_a_warning(module, former, name):
    imported = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=rf"{former} is called {name} now"):
        assert getattr(imported, former) is getattr(imported, name)
    with pytest.raises(AttributeError, match="'Nonsense'"):
        imported.Nonsense  # noqa: B018


@pytest.mark.parametrize(
    "base", [Drafter, DraftState, EnergyMeter, Generation, GrownTree, SeededSource]
)
def test_every_present_name_of_a_renamed_member_exists_and_no_former_one(base):
    assert base.former_members
    assert not [name for name in base.former_members.values() if not hasattr(base, name)]
    assert not [name for name in base.former_members if hasattr(base, name)]


@pytest.mark.parametrize("kind", [Comparison, Difference])
def test_fields_of_what_claims_get_are_found_by_their_former_names(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields.union(vars(kind)).issuperset(kind.former_members.values())
    with pytest.warns(FutureWarning, match="Difference.why is called no_interval_reason now"):
        assert Difference(0.0, None, False, "too few").why == "too few"


def test_a_drafter_that_defines_its_members_by_their_former_names_drafts():
    with pytest.warns(FutureWarning, match="Old.drafting is called make_state now") as warned:

        class Old(Drafter):
            @property
            def own_model(self):
                return True

            def drafting(self, resources):
                return OldState()

    assert {each.filename for each in warned} == {__file__}
    with pytest.warns(FutureWarning, match="OldState.at_root is called root_logits now"):

        class OldState(DraftState):
            def at_root(self, committed):
                return "logits"

    assert Old().has_own_model is True
    assert Old().make_state(None).root_logits(None) == "logits"


def test_a_policy_that_grows_by_the_former_name_grows_each_level():
    with pytest.warns(FutureWarning, match="OldChain.grow is called grow_level now"):

        class OldChain(Chain):
            @classmethod
            def of_spec(cls, spec):
                return {"depth": spec}

            def grow(self, tree, scores, draws):
                tree.grown += 1

    policy = OldChain(2)
    tree = Tree(policy.shape, torch.tensor([1]))
    policy.grow_level(tree, None, None)
    assert (tree.grown, OldChain.parse_spec(7)) == (1, {"depth": 7})


def test_callers_read_a_member_by_its_former_name_with_a_warning():
    draws = SeededSource([torch.Generator().manual_seed(0)])
    with pytest.warns(FutureWarning, match="SeededSource.by_position is called prepare"):
        draws.by_position(2)
    with pytest.raises(AttributeError, match="'nonsense'"):
        draws.nonsense  # noqa: B018
