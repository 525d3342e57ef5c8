"""Whatever stands in a decoder's blocks, a wrong one ends in one line, at once."""

import random
import time

import pytest

from spec_bench.decode.config import read_decoder, resolve_spec
from tests.families import decoder_names, decoder_settings

DECODERS = decoder_names()
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


@pytest.mark.parametrize("name", DECODERS)
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
    for name in DECODERS:
        right = decoder_settings(name)
        said = refusal({**right, block: {**right[block], "widht": 3}})
        assert said is not None
        assert f"{block}.widht does not belong to" in said


def test_a_shorthand_of_any_kind_is_read_or_refused_at_once():
    chooser = random.Random(0)
    for name in DECODERS:
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
