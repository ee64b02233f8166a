from __future__ import annotations

import pytest

from nopad.notation import from_json, from_toml, to_json

DEEP = 100_000


def nested(depth, key=None):
    value = []
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (from_json, "[" * DEEP, "nested too deeply"),
        (from_json, b'{"a":' * DEEP, "nested too deeply"),
        (from_json, "[" + "1" * 5000 + "]", "digits"),
        (from_json, b'["\xff"]', "can't decode"),
        (from_json, "", "Expecting value"),
        (from_toml, "a = " + "[" * DEEP, "nested too deeply"),
        (from_toml, "a = " + "1" * 5000, "digits"),
        (from_toml, "a", "Expected"),
    ],
    ids=["deep", "deep dicts", "digits", "no UTF-8", "empty", "deep TOML", "digits in TOML", "no TOML"],
)
def test_whatever_is_wrong_with_a_text_is_a_value_error(read, text, said):
    with pytest.raises(ValueError, match=said):
        read(text)


@pytest.mark.parametrize("key", [None, "a", (1, 2)], ids=["lists", "dicts", "keys that JSON cannot hold"])
def test_a_value_nested_too_deeply_is_a_value_error(key):
    with pytest.raises(ValueError, match="nested too deeply"):
        to_json(nested(20_000, key))


def test_a_value_that_holds_itself_is_a_value_error():
    value = []
    value.append({(1, 2): value})
    with pytest.raises(ValueError, match=r"Circular|nested"):
        to_json(value)


def test_what_json_cannot_hold():
    assert to_json({"a": {1}, (1, 2): [{b"k": 1.5}]}) == '{"a": "{1}", "(1, 2)": [{"b\'k\'": 1.5}]}'
    assert to_json([{3}], default=lambda one: sorted(one), separators=(",", ":")) == "[[3]]"


def test_how_is_given_on():
    assert from_json('{"a": 1, "a": 2}', object_pairs_hook=list) == [("a", 1), ("a", 2)]
