"""Accounts to JSON and back, and files that are not what they should be."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from accounts import estimate, measurement

from memgauge.errors import FileFormatError, UsageError
from memgauge.explain.compare import compare
from memgauge.records import Account
from memgauge.report.json import decode_account, read_account, to_json


@pytest.mark.parametrize("account", [estimate(), measurement()], ids=["estimate", "measurement"])
def test_an_account_comes_back_as_it_went(account: Account, tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    account = msgspec.structs.replace(account, workload={"target": "zoo:gpt2"})
    file.write_text(to_json(account), encoding="utf-8")
    assert read_account(file) == account


@pytest.mark.parametrize(
    ("record", "schema"),
    [
        (estimate(), "memgauge.estimate/1"),
        (measurement(), "memgauge.measurement/1"),
        (compare(estimate(), measurement()), "memgauge.compare/1"),
    ],
    ids=["estimate", "measurement", "comparison"],
)
def test_the_schema_comes_first(record: msgspec.Struct, schema: str) -> None:
    first = next(iter(json.loads(to_json(record)).items()))
    assert first == ("schema", schema)


def test_bytes_are_raw_integers_and_unknown_is_null() -> None:
    peak = json.loads(to_json(estimate()))["peak"]
    assert peak["allocated_bytes"] == 16777216
    assert peak["host_bytes"] == {"low": 325058560, "expected": 370147328, "high": 420478976}
    assert peak["reserved_bytes"] is None


def test_any_argument_of_a_user_can_be_written() -> None:
    odd = {"by_pair": {(1, 2): 3j}, "path": "run\udcff.py", "some": {4}, "none": float("nan")}
    written = json.loads(to_json(estimate(workload=odd)))["workload"]
    assert written == {"by_pair": {"(1, 2)": "3j"}, "path": "run\\udcff.py", "some": [4], "none": None}


def test_standard_input_is_read_as_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO(to_json(measurement()).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=content))
    assert read_account("-").peak == measurement().peak


def test_a_byte_order_mark_does_no_harm() -> None:
    content = b"\xef\xbb\xbf" + to_json(estimate()).encode()
    assert decode_account(content, "a.json").peak == estimate().peak


def test_keys_of_a_later_minor_version_are_passed_over() -> None:
    facts = json.loads(to_json(estimate()))
    content = json.dumps({**facts, "new_key": 1}).encode()
    assert decode_account(content, "a.json").peak == estimate().peak


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b'{"schema": "memgauge.estimate/1", "wor', "is damaged, or not JSON: Input data was truncated"),
        (b"no json", "is damaged, or not JSON"),
        (b"\xff\xfe{", "is damaged, or not JSON"),
        (b'{"schema":"\xff"}', "is damaged, or not JSON"),
        (b'{"schema": "memgauge.estimate/1", "x": ' + b"[" * 100_000, "is damaged, or not JSON"),
        (b"[1, 2]", "is JSON, but no estimate or measurement"),
        (b'{"schema": 3}', "is JSON, but no estimate or measurement"),
        (b'{"a": 1}', 'is JSON without the key "schema"'),
        (b'{"schema": "memgauge.estimate/2"}', "is memgauge.estimate/2, made by a newer memgauge"),
        (b'{"schema": "memgauge.estimate/0"}', "is 'memgauge.estimate/0', which is no estimate"),
        (b'{"schema": "memgauge.compare/1"}', "is 'memgauge.compare/1', which is no estimate"),
        (b'{"schema": "other"}', "is 'other', which is no estimate"),
        (b'{"schema": "memgauge.estimate/1"}', "is damaged: Object missing required field `workload`"),
        (b"SQLite format 3\x00", "is an SQLite file, not JSON"),
    ],
)
def test_a_file_that_is_something_else_says_what_is_wrong(content: bytes, said: str) -> None:
    with pytest.raises(FileFormatError) as raised:
        decode_account(content, "what.json")
    assert str(raised.value).startswith("what.json ")
    assert said in str(raised.value)


def test_a_figure_of_the_wrong_type_is_named_by_its_path() -> None:
    facts = json.loads(to_json(estimate()))
    facts["peak"]["allocated_bytes"] = "16 MiB"
    with pytest.raises(FileFormatError, match=r"peak\.allocated_bytes"):
        decode_account(json.dumps(facts).encode(), "a.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.json: there is no such file"):
        read_account(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="is a directory"):
        read_account(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_account("a\0b")
