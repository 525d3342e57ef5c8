"""What is refused before any model is loaded, in one line, and the papers' shorthand."""

import copy
import random
import time

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import apply_tree_shorthand, build_decoder, read_decoder
from tests import families
from tests.families import built, decoder_names, decoder_settings, tiny_pair
from tests.said import naming, one_line

SPECS = {"ar": "-", "sd": "5", "spectr": "4x3", "rsd_s": "12x5", "rsd_c": "2-2-1", "mcns": "7"}


@pytest.mark.parametrize("name", SPECS)
def test_shorthand_round_trips(name):
    assert read_decoder(decoder_settings(name, SPECS[name])).spec == SPECS[name]


def test_shorthand_does_not_change_the_decoder_it_came_from():
    decoder = decoder_settings("rsd_s")
    before = copy.deepcopy(decoder)
    apply_tree_shorthand(decoder, "9x9")
    assert decoder == before


@pytest.mark.parametrize(
    ("name", "spec", "named"),
    [
        ("sd", "2x2", "a draft length such as 3"),
        ("rsd_s", "2-2", "beam width K, length L"),
        ("rsd_c", "3x3", "children per level"),
        ("ar", "3", "'-'"),
        ("rsd_c", "2-0-1", "spec '2-0-1' does not fit"),
        ("spectr", "0x3", "spec '0x3' does not fit"),
        ("mcsd", 100_000, "from 1 to 4096"),  # too large to be meant
        ("mcsd", "64-64-64", "at most 4096 nodes, got 266304"),
    ],
)
def test_a_shorthand_that_does_not_fit_is_refused_with_the_form_it_should_have(name, spec, named):
    with one_line(named):
        read_decoder(decoder_settings(name, spec))


def altered(name, key, value):
    """A decoder with a block, or a field of one, changed."""
    decoder = decoder_settings(name)
    block, _, field = key.partition(".")
    return decoder | {block: decoder[block] | {field: value} if field else value}


WITH = "recursive_rejection with replacement"
WIDE = {"policy": "guessed", "width": 2, "depth": 3}


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("rsd_c", "tree.replacement", True, f"draws siblings 'iid', but rule '{WITH}: false'"),
        ("mcsd", "tree.replacement", False, f"'without_replacement', but rule '{WITH}: true'"),
        (
            "rsd_s",
            "verifier.rule",
            "k_seq",
            "unknown setting verifier.replacement.*rule 'k_seq' has no settings",
        ),
        ("rsd_s", "verifier", {"rule": "k_seq"}, "but rule 'k_seq' is exact"),
        ("rsd_s", "verifier.rule", "coin", "k_seq, naive, optimal, recursive_rejection"),
        ("rsd_s", "tree.policy", "bush", "iid_paths, node_list, root"),
        ("rsd_s", "tree.paths", 3, "unknown setting tree.paths"),
        ("sd", "drafter.kind", "none", "'none' does not go with tree policy 'chain'"),
        ("sd", "drafter.kind", "oracle", "language_model, lookup, lookup_or_model"),
        ("rsd_s", "drafter.drafts", 2, "2 drafts need tree.policy 'widths'"),
        ("sd", "tree.depth", True, "depth must be a whole number from 1 to 4096, got True"),
        ("dsbd", "tree.least", 9, "tree.least must be at most tree.width = 4, got 9"),
        ("dsbd", "tree.threshold", 1.5, "must be a number from 0 to 1, got 1.5"),
        ("dsbd", "verifier.rule", "k_seq", "verifier.one_cache.*rule 'k_seq' has no settings"),
        ("dsbd", "verifier.one_cache", "no", "one_cache must be true or false, got 'no'"),
        ("dsbd", "verifier.epsilon", 1, "unknown setting verifier.epsilon"),
        ("dsbd", "drafter.drafts", 2, "uses 1 draft models, got 2"),
        ("medusa", "drafter.kind", "redrafter", "go with tree policy 'node_list'"),
        ("medusa", "tree.nodes", "oak", "'oak' is no node list; known: mc_sim_7b_63"),
        ("medusa", "tree.nodes", [[0, 0]], r"node \[0, 0\] has no parent \[0\]"),
        ("medusa_typical", "verifier.epsilon", 2, "epsilon must be a number"),
        (
            "medusa_typical",
            "verifier.alpha",
            2,
            "unknown setting verifier.alpha.*has delta, epsilon",
        ),
        ("medusa", "verifier", {"rule": "k_seq"}, "exact only for siblings drawn 'iid'"),
        ("eagle3", "drafter.layer_ids", "third", "layer_ids must be one of"),
        (
            "eagle",
            "drafter.layer_ids",
            "input",
            "unknown setting drafter.layer_ids.*drafter 'eagle' has",
        ),
        ("eagle", "tree", families.BEAMS, "'eagle' does not go with"),
        ("hf_assisted", "drafter", {"kind": "medusa"}, "'medusa'"),
        ("hf_assisted", "tree_attention", False, "tree_attention must be true"),
        ("hf_assisted", "tree", {"policy": "widths", "widths": [2]}, "'widths'"),
        ("hf_assisted", "verifier.confidence", 2, "confidence"),
        ("hf_prompt_lookup", "drafter.share", 0.1, "drafter.share 0.0"),
        ("hf_prompt_lookup", "tree", WIDE, "is 2"),
        ("own_blocks", "drafter", {"kind": "own_blocks", "first": 1, "kept": [0]}, "exclude each"),
        ("own_blocks", "drafter.kept", [1, 0], "rising places"),
        ("own_blocks", "drafter.kept", [], "kept must be"),
        ("own_blocks", "drafter.first", 0, "first must be"),
        ("prompt_lookup", "drafter.shortest", 99, "shortest must be at most longest, .*, got 99"),
        ("prompt_lookup", "tree.width", 5, "first_match.*tree.width must be 1, got 5"),
        ("rsd_s", "tree_attention", False, "fixed paths.*'stochastic_beam'"),
        ("sd", "tree_attention", "no", "true or false, got 'no'"),
        ("sd", "tree_atention", False, "tree_atention.*tree_attention"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(name, key, value, said):
    with one_line(said):
        read_decoder(altered(name, key, value))


def test_where_each_path_is_a_row_of_the_target_its_cache_has_one_for_each():
    target, draft = tiny_pair("llama")
    for name, paths in (("rsd_c", 1), ("rsd_c apart", 4)):
        decoder = built(name, (target, draft), spec="2-2")
        own = paths * target.bytes_per_slot + draft.bytes_per_slot
        assert decoder.cache_bytes_per_row(5, 8) == own * decoder.count_slots_per_row(5, 8)


def test_too_few_drafts_are_refused():
    target, draft = tiny_pair("llama")
    decoder = altered("specinfer", "drafter.drafts", 2)
    with pytest.raises(ValueError, match=naming("2 drafts", "1")):
        build_decoder(decoder, target, [draft], SamplingSettings())


NAMES = decoder_names()
WRONG = (
    *(float("nan"), float("inf"), -1, 0, 1.5, True, False, None, "x", "3", "", "\n", "ß∂"),
    *([], [1, 2], [[1]], {}, {"a": 1}, 10**9, 10**400, -(10**400), "9" * 9999, [10**6] * 50),
)


@pytest.fixture(autouse=True)
def quick():
    """None of many values takes long."""
    start = time.process_time()
    yield
    assert time.process_time() - start < 5


def refusal(settings, spec=None):
    """The message, None where the settings are right."""
    try:
        assert read_decoder(apply_tree_shorthand(settings, spec)).spec
        return None
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_any_wrong_value_of_any_key_is_refused_in_one_line(name):
    right = decoder_settings(name)
    for block in ("drafter", "tree", "verifier"):
        for key in right[block]:
            for value in WRONG:
                said = refusal(altered(name, f"{block}.{key}", value))
                if said is not None:
                    assert len(said.splitlines()) == 1 and len(said) < 400, said
                    assert name in said, said
        for value in WRONG:
            if not isinstance(value, dict):
                said = refusal(altered(name, block, value))
                assert said is not None and f"{block} must be a mapping" in said


@pytest.mark.parametrize("block", ["drafter", "tree", "verifier"])
def test_a_misspelt_key_is_named_with_those_there_are(block):
    for name in NAMES:
        said = refusal(altered(name, f"{block}.widht", 3))
        assert said is not None and f"unknown setting {block}.widht" in said and " has " in said


def test_a_shorthand_of_any_kind_is_read_or_refused_at_once():
    chooser = random.Random(0)
    for name in NAMES:
        right = decoder_settings(name)
        for _ in range(40):
            spec = "".join(chooser.choices("0123456789x-@.ab ", k=chooser.randint(1, 12)))
            said = refusal(right, spec)
            assert said is None or (len(said.splitlines()) == 1 and name in said)
        for spec in (10**5, 10**9, "4096x4096", "2-" * 4000 + "2", "-".join(["1"] * 9000)):
            said = refusal(right, spec)
            assert said is not None and len(said) < 400
