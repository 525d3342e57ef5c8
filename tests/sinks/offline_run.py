"""Reads what an offline W&B run wrote, from the run's own file.

The file has LevelDB's log framing: blocks of 32 KiB, in each physical records of a 7-byte header
(CRC-32 of type and data, length, type; little endian) and data; a logical record that crosses
blocks comes in a first, some middle and a last piece. The first 7 bytes of the file are W&B's own,
its magic and a version, which shorten the first block. A logical record is a ``Record`` of W&B's
protobuf.
"""

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from wandb.proto import wandb_internal_pb2

from tests.warm import until

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    run: Any = None  # id, group, job_type, tags, ... as W&B will be told
    config: dict[str, Any] = field(default_factory=dict)  # what ``init`` was given
    history: dict[int, dict[str, Any]] = field(default_factory=dict)  # the lines by step
    summary: dict[str, Any] = field(default_factory=dict)  # the last value of each key
    exit_code: int | None = None  # 0 for a run that ended well; None where it did not end
    kinds: set[str] = field(default_factory=set)


def read_run(folder, wait_s=20.0):
    """The finished run in a folder; W&B writes it in a process of its own, which may be behind."""
    (file,) = folder.glob("*.wandb")
    assert until(lambda: _read(file).exit_code is not None, wait_s), f"{file.name} does not end"
    return _read(file)


def _read(file):
    found = OfflineRun()
    for data in logical_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        found.kinds.add(kind)
        if kind == "run":
            found.run = record.run
            _update(found.config, record.run.config.update)
        elif kind == "config":
            _update(found.config, record.config.update)
        elif kind == "history":
            line = found.history.setdefault(record.history.step.num, {})
            _update(line, record.history.item)
        elif kind == "summary":
            _update(found.summary, record.summary.update)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def offline_runs(folder):
    """The runs below an experiment's folder by id, each id's in the order of their start."""
    found = {}
    for path in sorted(folder.glob("wandb/offline-run-*")):
        run = read_run(path)
        found.setdefault(run.run.run_id, []).append(run)
    return found


def logical_records(data):
    """The records in a file's bytes, each piece's checksum compared."""
    assert data[:4] == b":W&B", "not a W&B transaction log"
    at, pieces = _HEADER, b""
    while at + _HEADER <= len(data):
        checksum, length, kind = struct.unpack_from("<IHB", data, at)
        if _BLOCK - at % _BLOCK < _HEADER or kind == 0:
            at += _BLOCK - at % _BLOCK  # padding
            continue
        piece = data[at + _HEADER : at + _HEADER + length]
        if len(piece) < length:
            return  # still being written
        assert checksum == zlib.crc32(bytes([kind]) + piece), f"bad checksum at byte {at}"
        assert bool(pieces) == (kind in (_MIDDLE, _LAST)), f"piece out of order at byte {at}"
        pieces += piece
        if kind in (_FULL, _LAST):
            yield pieces
            pieces = b""
        at += _HEADER + length


def _update(target, items):
    """Sets keys, which are nested where ``nested_key`` has several parts."""
    for item in items:
        *path, last = list(item.nested_key) or [item.key]
        inner = target
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = json.loads(item.value_json)
