"""What is refused before any model is loaded, in one line, and the papers' shorthand."""

import copy
import random
import time

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder, resolve_spec
from spec_bench.records.types import Request
from tests.families import DECODERS, decoder_names, decoder_settings, tiny_pair
from tests.said import naming


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("ar", "-"),
        ("sd", "5"),
        ("spectr", "4x3"),
        ("rsd_s", "12x5"),
        ("rsd_c", "2-2-1"),
        ("mcsd", "4-2-2-1-1"),
        ("mcns", "7"),
    ],
)
def test_shorthand_round_trips(name, spec):
    decoder = decoder_settings(name, spec)
    read_decoder(decoder)
    assert read_decoder(decoder).spec == spec


def test_shorthand_does_not_change_the_decoder_it_came_from():
    decoder = decoder_settings("rsd_s")
    before = copy.deepcopy(decoder)
    resolve_spec(decoder, "9x9")
    assert decoder == before


@pytest.mark.parametrize(
    ("name", "spec", "named"),
    [
        ("sd", "2x2", "a draft length such as 3"),
        ("rsd_s", "2-2", "beam width K, length L"),
        ("rsd_c", "3x3", "children per level"),
        ("ar", "3", "'-'"),
        ("rsd_c", "2-0-1", "from 1 to 4096"),
        ("spectr", "0x3", "from 1 to 4096"),
    ],
)
def test_a_shorthand_that_does_not_fit_is_refused_with_the_form_it_should_have(name, spec, named):
    with pytest.raises(ValueError, match=named) as caught:
        read_decoder(decoder_settings(name, spec))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_of_the_configs_is_valid_at_any_temperature(name):
    for temperature in (0.0, 1.0):
        read_decoder(decoder_settings(name), SamplingSettings(temperature=temperature))


def altered(name, block, **values):
    decoder = decoder_settings(name)
    decoder[block] = {**decoder[block], **values}
    return decoder


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (
            altered("rsd_c", "tree", replacement=True),
            "draws siblings 'iid', but rule 'recursive_rejection with replacement: false'",
        ),
        (
            altered("mcsd", "tree", replacement=False),
            "'without_replacement', but rule 'recursive_rejection with replacement: true'",
        ),
        (altered("rsd_s", "verifier", rule="k_seq"), "verifier.replacement does not belong"),
        ({**decoder_settings("rsd_s"), "verifier": {"rule": "k_seq"}}, "but rule 'k_seq' is exact"),
        (altered("rsd_s", "verifier", rule="coin"), "k_seq, naive, optimal, recursive_rejection"),
        (altered("rsd_s", "tree", policy="bush"), "iid_paths, node_list, root"),
        (altered("rsd_s", "tree", paths=3), "tree.paths does not belong"),
        (altered("sd", "drafter", kind="none"), "'none' does not go with tree policy 'chain'"),
        (altered("sd", "drafter", kind="oracle"), "language_model, lookup, lookup_or_model"),
        (altered("rsd_s", "drafter", drafts=2), "2 drafts need tree.policy 'widths'"),
        (
            altered("sd", "tree", depth=True),
            "tree.depth must be a whole number from 1 to 4096, got True",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(decoder, named):
    with pytest.raises(ValueError, match=named):
        read_decoder(decoder)


def test_a_request_too_long_for_the_context_is_refused_before_decoding():
    target, draft = tiny_pair("llama")
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    with pytest.raises(ValueError, match=naming("133", "128")):
        decoder.generate([Request("long", (1,) * 100, 30)], 0)


def test_an_empty_prompt_is_refused():
    target, _ = tiny_pair("llama")
    decoder = build_decoder(decoder_settings("ar"), target, [], SamplingSettings())
    with pytest.raises(ValueError, match=naming("'void'")):
        decoder.generate([Request("void", (), 3)], 0)


def test_too_few_drafts_are_refused():
    target, draft = tiny_pair("llama")
    decoder = altered("specinfer", "drafter", drafts=2)
    with pytest.raises(ValueError, match=naming("2 drafts", "1")):
        build_decoder(decoder, target, [draft], SamplingSettings())


NAMES = decoder_names()
WRONG = (
    *(float("nan"), float("inf"), -1, 0, 1.5, True, False, None, "x", "3", "", "\n", "ß∂"),
    *([], [1, 2], [[1]], {}, {"a": 1}, 10**9, 10**400, -(10**400), "9" * 9999, [10**6] * 50),
)


def refusal(settings, spec=None):
    """The message, None where the settings are right; at most a second is taken."""
    start = time.process_time()
    try:
        assert read_decoder(resolve_spec(settings, spec)).spec
        return None
    except ValueError as error:
        return str(error)
    finally:
        assert time.process_time() - start < 1


@pytest.mark.parametrize("name", NAMES)
def test_any_wrong_value_of_any_key_is_refused_in_one_line(name):
    right = decoder_settings(name)
    for block in ("drafter", "tree", "verifier"):
        for key in right[block]:
            for value in WRONG:
                changed = {**right, block: {**right[block], key: value}}
                said = refusal(changed)
                if said is not None:
                    assert len(said.splitlines()) == 1 and len(said) < 400, said
                    assert name in said, said
        for value in WRONG:
            if not isinstance(value, dict):
                said = refusal({**right, block: value})
                assert said is not None and f"{block} must be a mapping" in said


@pytest.mark.parametrize("block", ["drafter", "tree", "verifier"])
def test_a_misspelt_key_is_named_with_those_there_are(block):
    for name in NAMES:
        right = decoder_settings(name)
        said = refusal({**right, block: {**right[block], "widht": 3}})
        assert said is not None
        assert f"{block}.widht does not belong to" in said


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


@pytest.mark.parametrize(
    ("name", "spec", "bound"),
    [("mcsd", 100_000, "from 1 to 4096"), ("mcsd", "64-64-64", "at most 4096 nodes, got 266304")],
)
def test_a_tree_too_large_to_be_meant_is_refused_by_a_stated_bound(name, spec, bound):
    said = refusal(decoder_settings(name), spec)
    assert said is not None
    assert bound in said


def test_what_is_no_key_of_a_decoder_is_named():
    said = refusal({**decoder_settings("sd"), "tree_atention": False})
    assert said is not None
    assert "tree_atention" in said
    assert "tree_attention" in said
