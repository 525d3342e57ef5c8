"""A file that was altered is told from one that was not, before anybody parses it."""

import json

import pytest

from spec_bench.records import seals
from spec_bench.records.seals import BLANK, UnsealedError

BODY = b"begin sha256:not the digest" + BLANK + b" end"


def test_a_sealed_file_fits_and_keeps_its_length():
    data = seals.seal(BODY)
    seals.check(data)
    assert len(data) == len(BODY) and data != BODY
    assert (data[:27], data[-4:]) == (BODY[:27], b" end")


def test_no_single_bit_can_change():
    data = seals.seal(BODY)
    for place in range(8 * len(data)):
        altered = bytearray(data)
        altered[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match="digest"):
            seals.check(bytes(altered))


@pytest.mark.parametrize("length", [0, 1, 27, len(BODY) - 1])
def test_a_part_of_a_file_is_none(length):
    with pytest.raises(ValueError, match="digest"):
        seals.check(seals.seal(BODY)[:length])


def test_a_file_without_a_digest_is_told_from_an_altered_one():
    with pytest.raises(UnsealedError):
        seals.check(b"begin end")


@pytest.mark.parametrize("data", [b"no place", BLANK + b"sha256:later"])
def test_a_file_without_a_place_for_its_digest_is_not_sealed(data):
    with pytest.raises(ValueError, match="place"):
        seals.seal(data)


def test_a_mapping_comes_back_without_its_digest_and_not_if_altered(tmp_path):
    path, content = tmp_path / "a.json", {"b": 1, "a": {"c": 0.1}}
    path.write_text(json.dumps(seals.sealed(content)))
    assert seals.opened(path) == content
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(ValueError, match="altered"):
        seals.opened(path)
