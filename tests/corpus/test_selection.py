from __future__ import annotations

import pyarrow as pa
import pytest

from nopad.corpus import Carried
from nopad.corpus.options import ReaderOptions
from nopad.corpus.selection import select
from nopad.errors import SourceError

IDS = pa.list_(pa.int32())
FULL = pa.schema(
    {
        "input_ids": IDS,
        "attention_mask": pa.list_(pa.int8()),
        "token_type_ids": pa.large_list(pa.int8()),
        "loss_weight": pa.list_(pa.float16(), 4),
        "label": pa.int64(),
        "score": pa.float32(),
        "ok": pa.bool_(),
        "id": pa.large_string(),
        "kind": pa.dictionary(pa.int8(), pa.string()),
        "when": pa.timestamp("s"),
        "nested": pa.list_(pa.list_(pa.int32())),
        "words": pa.list_(pa.string()),
        "nothing": pa.null(),
        "text": pa.string(),
    }
)


def test_ids_take_everything_that_can_ride_along():
    found = select(FULL, ReaderOptions(), "a")
    assert (found.content, found.kind, found.mask) == ("input_ids", "ids", "attention_mask")
    assert [(column.name, column.per, column.type) for column in found.carried] == [
        ("token_type_ids", "token", "int8"),
        ("loss_weight", "token", "halffloat"),
        ("label", "sequence", "int64"),
        ("score", "sequence", "float"),
        ("ok", "sequence", "bool"),
        ("id", "sequence", "string"),
        ("kind", "sequence", "string"),
        ("text", "sequence", "string"),
    ]
    assert found.left_out == ("when", "nested", "words", "nothing")
    assert found.columns[:3] == ["input_ids", "attention_mask", "token_type_ids"]


def test_text_takes_what_is_asked_for():
    assert select(FULL, ReaderOptions(text_field="text"), "a").carried == ()
    found = select(FULL, ReaderOptions(text_field="text", carry=("label", "id")), "a")
    assert found.kind == "text"
    assert found.mask is None
    assert found.carried == (
        Carried(name="label", per="sequence", type="int64"),
        Carried(name="id", per="sequence", type="string"),
    )


def test_text_is_read_where_there_are_no_ids():
    assert select(pa.schema({"text": pa.string(), "url": pa.string()}), ReaderOptions(), "a").left_out == ("url",)


def test_a_column_never_takes_the_place_of_the_content():
    schema = pa.schema({"tokens": IDS, "input_ids": IDS, "labels": IDS})
    found = select(schema, ReaderOptions(ids_field="tokens"), "a")
    assert [column.name for column in found.carried] == ["labels"]
    assert found.left_out == ("input_ids",)
    with pytest.raises(SourceError, match="the column 'input_ids' cannot be carried: nopad writes one of that name"):
        select(schema, ReaderOptions(ids_field="tokens", carry=("input_ids",)), "a")


def test_masks():
    assert select(FULL, ReaderOptions(mask_field=None), "a").mask is None
    assert select(FULL, ReaderOptions(pad_id=0), "a").mask is None
    assert select(FULL, ReaderOptions(pad_id=0), "a").pad_id == 0
    other = pa.schema({"input_ids": IDS, "m": pa.list_(pa.bool_()), "attention_mask": pa.string()})
    assert select(other, ReaderOptions(mask_field="m"), "a").mask == "m"
    with pytest.raises(SourceError, match="a: the mask column 'attention_mask' is string, not lists of 0 and 1"):
        select(other, ReaderOptions(), "a")


@pytest.mark.parametrize("kind", [IDS, pa.int64(), pa.string()])
@pytest.mark.parametrize("name", ["position_ids", "cu_seqlens", "sequence_ids"])
def test_what_nopad_computes_is_never_carried(name, kind):
    """Positions of the user's were handed on by `to_hf`, and a collator found other sequences in them."""
    said = f"a: the column '{name}' cannot be carried: nopad computes one of that name; rename it"
    schema = pa.schema({"input_ids": IDS, "text": pa.string(), name: kind})
    for options in (ReaderOptions(), ReaderOptions(carry=(name,)), ReaderOptions(text_field="text", carry=(name,))):
        with pytest.raises(SourceError, match=said):
            select(schema, options, "a")
    assert select(schema, ReaderOptions(carry=("text",)), "a").left_out == (name,)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.fixed_shape_tensor(pa.int8(), [3]),
        pa.map_(pa.int8(), pa.int8()),
        pa.binary(),
        pa.large_binary(),
    ],
)
def test_a_mask_of_values_that_are_no_lists_is_refused(kind):
    """It was left out, and padding was packed as tokens."""
    with pytest.raises(SourceError, match=r"'attention_mask' is .*, not lists of 0 and 1; convert it, or use no mask"):
        select(pa.schema({"input_ids": IDS, "attention_mask": kind}), ReaderOptions(), "a")


@pytest.mark.parametrize("kind", [pa.int64(), pa.float32(), pa.bool_(), pa.dictionary(pa.int8(), pa.int64())])
def test_a_mask_of_one_value_is_left_out(kind):
    schema = pa.schema({"input_ids": IDS, "attention_mask": kind})
    found = select(schema, ReaderOptions(), "a")
    assert (found.mask, found.carried, found.left_out) == (None, (), ("attention_mask",))
    with pytest.raises(SourceError, match="'attention_mask' cannot be carried: nopad computes one of that name"):
        select(schema, ReaderOptions(carry=("attention_mask",)), "a")


@pytest.mark.parametrize(
    ("schema", "reading", "message"),
    [
        (
            {"q": pa.string(), "a": pa.string()},
            {},
            "choose one with text_field= or ids_field=, or both texts of a pair with text_pair=",
        ),
        ({"ids": IDS}, {}, "a: neither a column 'input_ids' nor 'text'; it has the columns \"ids\"; choose one with "),
        ({}, {}, "it has no columns; choose one"),
        ({"input_ids": pa.int32()}, {}, "a: the column 'input_ids' is int32, not lists of integers; choose another"),
        ({"input_ids": pa.list_(pa.float64())}, {}, "is list<item: double>, not lists of integers"),
        ({"text": pa.list_(pa.string())}, {}, "is list<item: string>, not strings"),
        ({"t": pa.int8()}, {"text_field": "t"}, "the column 't' is int8, not strings"),
        ({"input_ids": IDS}, {"ids_field": "x"}, "a: no column 'x'; it has the columns \"input_ids\""),
        ({"input_ids": IDS}, {"carry": ("labels",)}, "a: no column 'labels'; it has"),
        ({"input_ids": IDS}, {"carry": ("input_ids",)}, "the column 'input_ids' cannot be carried: nopad writes one"),
        (
            {"input_ids": IDS, "seq_lengths": IDS},
            {"carry": ("seq_lengths",)},
            "the column 'seq_lengths' cannot be carried",
        ),
        (
            {"input_ids": IDS, "n": pa.list_(IDS)},
            {"carry": ("n",)},
            "'n' is list<item: list<item: int32>>, which cannot",
        ),
        (
            {"text": pa.string(), "n": IDS},
            {"carry": ("n",)},
            "and lists are beside text, whose tokens are not yet known",
        ),
        ({"input_ids": IDS, "m": pa.int8()}, {"mask_field": "m"}, "the mask column 'm' is int8, not lists of 0 and 1"),
        ({"input_ids": IDS}, {"mask_field": "m"}, "no column 'm'"),
    ],
)
def test_what_cannot_be_read_is_refused(schema, reading, message):
    with pytest.raises(SourceError) as caught:
        select(pa.schema(schema), ReaderOptions(**reading), "a")
    assert message in str(caught.value)


def test_a_column_that_is_there_twice():
    schema = pa.schema([("input_ids", IDS), ("label", pa.int8()), ("label", pa.int8())])
    with pytest.raises(SourceError, match="a: 2 columns 'label'"):
        select(schema, ReaderOptions(carry=("label",)), "a")
    for name, kind in (("attention_mask", IDS), ("assistant_masks", IDS), ("labels", pa.null()), ("labels", pa.int8())):
        schema = pa.schema([("input_ids", IDS), (name, kind), (name, kind)])
        with pytest.raises(SourceError, match=f"a: .*'{name}'"):
            select(schema, ReaderOptions(find_labels=True), "a")


@pytest.mark.parametrize("content", [{"text": pa.string()}, {"input_ids": IDS}])
def test_a_label_without_values_beside_the_labels(content):
    """Only the first name of labels that occurs is used; the others are not missed."""
    options = ReaderOptions(find_labels=True)
    found = select(pa.schema({**content, "labels": pa.int64(), "label": pa.null()}), options, "a")
    assert ([column.name for column in found.carried], found.left_out) == (["labels"], ("label",))
    with pytest.raises(SourceError, match="the column 'labels' is null in every record"):
        select(pa.schema({**content, "labels": pa.null(), "label": pa.int64()}), options, "a")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"carry": ("label", "label")}, "the column 'label' is to be carried twice; name each once in carry="),
        ({"carry": ("attention_mask",)}, "the column 'attention_mask' marks padding, which is cut off"),
        ({"carry": ("label", "attention_mask")}, "the column 'attention_mask' marks padding, which is cut off"),
        ({"mask_field": "input_ids"}, "the column 'input_ids' cannot be its own mask"),
        ({"ids_field": "attention_mask"}, "the column 'attention_mask' cannot be its own mask"),
    ],
)
def test_a_column_is_one_thing(options, says):
    with pytest.raises(SourceError) as caught:
        select(FULL, ReaderOptions(**options), "a")
    assert f"a: {says}" in str(caught.value)


@pytest.mark.parametrize("options", [{"mask_field": None}, {"pad_id": 0}])
def test_a_mask_that_marks_no_padding_is_not_carried(options):
    """The loader dropped it without a word, and the collator of the same dataset refused it."""
    chosen = select(FULL, ReaderOptions(**options), "a")
    assert (chosen.mask, "attention_mask" in chosen.left_out) == (None, True)
    with pytest.raises(SourceError, match="a: the column 'attention_mask' cannot be carried: nopad computes one"):
        select(FULL, ReaderOptions(**options, carry=("attention_mask",)), "a")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.int8())),
        pa.list_(pa.null()),
        pa.list_(pa.string()),
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int8()),
        pa.fixed_shape_tensor(pa.int8(), [4]),
        pa.map_(pa.int64(), pa.int8()),
        pa.struct({"mask": IDS}),
        pa.binary(),
        pa.string(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_a_mask_of_other_types(kind):
    """It ended in a ValueError of NumPy when the values were read, or was left out, and padding was packed."""
    schema = pa.schema({"input_ids": IDS, "attention_mask": kind})
    with pytest.raises(SourceError) as caught:
        select(schema, ReaderOptions(), "a")
    assert str(caught.value).startswith(f"a: the mask column 'attention_mask' is {kind}, not lists of 0 and 1; convert")
    assert select(schema, ReaderOptions(mask_field=None), "a").left_out == ("attention_mask",)
