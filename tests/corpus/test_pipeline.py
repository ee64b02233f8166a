from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus import (
    CHAIN_START,
    CorpusOptions,
    Counts,
    DictSource,
    IterableSource,
    Source,
    Tokenizer,
    chain,
    open_source,
    sequences,
)
from nopad.errors import FormatError, OptionError, RecordError, SourceError

CLS, SEP = 1, 2
CONTENT = st.lists(st.lists(st.integers(3, 52), max_size=12), max_size=25)
OVER_LONG = st.sampled_from(["truncate", "split", "drop"])


def as_text(ids: list[int]) -> str:
    return " ".join(f"w{i - 3}" for i in ids)


def run(source: Source, tokenizer, options: CorpusOptions, **kwargs):
    """[(tokens, record, start)] of all sequences, and the sum of the counts."""
    out, counts = [], Counts()
    for group in sequences(source.blocks(), tokenizer, options, **kwargs):
        batch = group.batch
        ids, lengths = batch.tokens["input_ids"], batch.seq_lengths
        record, start = batch.values["seq_index"], batch.values["seq_start"]
        assert [ids.dtype, lengths.dtype] == [np.int32, np.int32]
        assert [record.dtype, start.dtype] == [np.int64, np.int64]
        ends = np.cumsum(lengths)
        assert ids.size == lengths.sum()
        pieces = [ids[end - n : end].tolist() for end, n in zip(ends, lengths, strict=True)]
        out += zip(pieces, record.tolist(), start.tolist(), strict=True)
        counts += group.counts
    return out, counts


def naive(content: list[list[int]], options: CorpusOptions, *, special: bool):
    """What must come out, the slow and obvious way."""
    room = options.capacity - 2 * special
    out = []
    for number, ids in enumerate(content):
        if len(ids) > room and options.over_long == "drop":
            continue
        for start in range(0, len(ids), room):
            if start == 0 or options.over_long == "split":
                piece = ids[start : start + room]
                out.append(([CLS, *piece, SEP] if special else piece, number, start))
    return out


def jsonl(tmp_path, *lines: object, name: str = "a.jsonl") -> Source:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (tmp_path / name).write_text(text)
    return open_source(tmp_path / name)


def message(source: Source, tokenizer, error=RecordError, **options) -> str:
    with pytest.raises(error) as caught:
        run(source, tokenizer, CorpusOptions(**({"capacity": 5} | options)))
    return str(caught.value)


@given(CONTENT, st.integers(3, 9), OVER_LONG, st.booleans(), st.integers(1, 6), st.integers(1, 200))
def test_text(words, content, capacity, over_long, special, block_records, group_bytes):
    options = CorpusOptions(capacity=capacity, over_long=over_long, special_tokens=special)
    source = IterableSource(map(as_text, content), block_records=block_records)
    out, counts = run(source, words, options, group_bytes=group_bytes)
    assert out == naive(content, options, special=special)
    assert all(len(tokens) <= capacity for tokens, _, _ in out)
    check_counts(counts, content, out, capacity - 2 * special, 2 * special)


@given(CONTENT, st.integers(1, 9), OVER_LONG, st.booleans(), st.integers(1, 6), st.integers(1, 200))
def test_ids_get_no_special_tokens(words, content, capacity, over_long, with_tokenizer, block_records, group_bytes):
    capacity += 2 * with_tokenizer
    options = CorpusOptions(capacity=capacity, over_long=over_long)
    source = IterableSource(content, block_records=block_records)
    out, counts = run(source, words if with_tokenizer else None, options, group_bytes=group_bytes)
    assert out == naive(content, options, special=False)
    check_counts(counts, content, out, capacity, 0)


def check_counts(counts: Counts, content: list[list[int]], out: list, room: int, special: int) -> None:
    """Every record and every content token is in exactly one place."""
    tokens = sum(map(len, content))
    over = sum(len(ids) > room for ids in content)
    assert counts.records == len(content)
    assert counts.sequences == len(out)
    assert counts.tokens == sum(len(piece) for piece, _, _ in out)
    assert counts.empty_skipped == sum(not ids for ids in content)
    assert counts.truncated + counts.split + counts.dropped == over
    assert tokens == counts.tokens - special * counts.sequences + counts.truncated_tokens + counts.dropped_tokens
    records = {record for _, record, _ in out}
    assert len(records) + counts.dropped + counts.empty_skipped + counts.bad_skipped == counts.records


@given(CONTENT, st.integers(1, 9))
def test_split_pieces_joined_are_the_records(words, content, room):
    source = IterableSource(map(as_text, content))
    out, _ = run(source, words, CorpusOptions(capacity=room + 2, over_long="split"))
    joined: dict[int, list[int]] = {}
    for tokens, record, start in out:
        assert start == len(joined.setdefault(record, []))
        joined[record] += tokens[1:-1]
    assert joined == {number: ids for number, ids in enumerate(content) if ids}


@given(CONTENT, st.integers(1, 5), st.integers(1, 100), st.integers(0, 25))
def test_a_job_can_go_on_behind_any_group(words, content, block_records, group_bytes, k):
    options = CorpusOptions(capacity=5, over_long="split")
    source = IterableSource(map(as_text, content), block_records=block_records)
    groups = list(sequences(source.blocks(), words, options, group_bytes=group_bytes))
    done = groups[:k]
    used = sum(len(group.blocks) for group in done)
    first = sum(group.counts.records for group in done)
    rest = sequences(list(source.blocks())[used:], words, options, first_record=first, group_bytes=group_bytes)
    for again, before in zip(rest, groups[k:], strict=True):
        assert again.counts == before.counts
        assert again.blocks == before.blocks
        np.testing.assert_array_equal(again.batch.seq_lengths, before.batch.seq_lengths)
        np.testing.assert_array_equal(again.batch.tokens["input_ids"], before.batch.tokens["input_ids"])
        for name in ("seq_index", "seq_start"):
            np.testing.assert_array_equal(again.batch.values[name], before.batch.values[name])


def test_block_size_changes_the_fingerprint_and_not_the_sequences(tmp_path, words):
    lines = "".join(json.dumps({"text": as_text([3 + i % 50] * (1 + i % 7))}) + "\n\n" for i in range(200))
    (tmp_path / "a.jsonl").write_text(lines + '{"text": \n' + lines)
    options = CorpusOptions(capacity=6, over_long="split", on_bad_record="skip")
    results, digests = [], set()
    for block_bytes in (64, 1000, 1 << 20):
        source = open_source(tmp_path, block_bytes=block_bytes)
        results.append(run(source, words, options, group_bytes=300))
        digest = CHAIN_START
        for block in source.blocks():
            digest = chain(digest, block)
        digests.add(digest)
    assert results[0] == results[1] == results[2]
    assert results[0][1].records == 401
    assert len(digests) == 3


def test_groups_hold_whole_blocks_of_about_the_size_asked_for(words):
    source = IterableSource(["w1"] * 10, block_records=1)
    groups = list(sequences(source.blocks(), words, CorpusOptions(capacity=9), group_bytes=12))
    assert [len(group.blocks) for group in groups] == [2] * 5
    assert [block for group in groups for block in group.blocks] == list(source.blocks())


def test_numbers_count_every_record_and_no_empty_line(tmp_path, words):
    source = jsonl(tmp_path, "", {"text": "w1"}, "", "broken", {"text": " "}, {"text": "w2 " * 9}, {"text": "w3"})
    options = CorpusOptions(capacity=5, over_long="drop", on_bad_record="skip")
    out, counts = run(source, words, options, first_record=100)
    assert out == [([CLS, 4, SEP], 100, 0), ([CLS, 6, SEP], 104, 0)]
    assert counts == Counts(
        records=5, sequences=2, tokens=6, dropped=1, dropped_tokens=9, empty_skipped=1, bad_skipped=1
    )


def test_over_long_text(tmp_path, words):
    source = jsonl(tmp_path, {"text": "w1 w2 w3"}, {"text": "w1 w2 w3 w4"})
    assert message(source, words) == (
        f"{tmp_path}/a.jsonl, line 2: 6 tokens with special tokens, capacity is 5; "
        'choose over_long="truncate", "split" or "drop", or a capacity of at least 6 for this record; '
        "nopad plan shows the longest"
    )
    assert run(source, words, CorpusOptions(capacity=6))[1].sequences == 2


def test_over_long_ids(tmp_path):
    source = jsonl(tmp_path, {"input_ids": [1] * 6})
    assert message(source, None) == (
        f"{tmp_path}/a.jsonl, line 1: 6 tokens, capacity is 5; "
        'choose over_long="truncate", "split" or "drop", or a capacity of at least 6 for this record; '
        "nopad plan shows the longest"
    )


def test_over_long_file(tmp_path, words):
    (tmp_path / "a.txt").write_text("w1 w2\nw3 w4\n")
    source = open_source(tmp_path)
    assert message(source, words, special_tokens=False, capacity=3) == (
        f"{tmp_path}/a.txt: 4 tokens, capacity is 3; "
        'choose over_long="truncate", "split" or "drop", or a capacity of at least 4 for this record; '
        "nopad plan shows the longest"
    )


@pytest.mark.parametrize("nothing", ["", " \n "])
def test_empty(tmp_path, words, nothing):
    source = jsonl(tmp_path, {"text": "w1"}, {"text": nothing})
    assert message(source, words, empty="error") == (
        f'{tmp_path}/a.jsonl, line 2: an empty document, without a single token; remove it, or choose empty="skip"'
    )
    assert run(source, words, CorpusOptions(capacity=5))[1].empty_skipped == 1


def test_bad_record(tmp_path, words):
    source = jsonl(tmp_path, {"text": "w1"}, "", '{"text": "w1"')
    assert message(source, words) == (
        f"{tmp_path}/a.jsonl, line 3: broken JSON: Expecting ',' delimiter at column 14; "
        'repair it, or choose on_bad_record="skip"'
    )


def test_invalid_utf8(tmp_path, words):
    (tmp_path / "a.txt").write_bytes(b"w1 \xff")
    source = open_source(tmp_path)
    assert message(source, words) == (
        f'{tmp_path}/a.txt: not UTF-8: byte 0xff at offset 3 of the file; repair it, or choose on_bad_record="skip"'
    )
    out, counts = run(source, words, CorpusOptions(capacity=5, on_bad_record="skip"))
    assert (out, counts) == ([], Counts(records=1, bad_skipped=1))


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
def test_the_first_problem_in_the_input_is_the_one_reported(tmp_path, words, group_bytes):
    """A record is found too long only after the ones behind it were decoded; it is reported all the same."""
    source = jsonl(tmp_path, {"text": "w1"}, {"text": "w1 " * 9}, "broken", {"text": ""})
    with pytest.raises(RecordError, match="line 2: 11 tokens"):
        run(source, words, CorpusOptions(capacity=5, empty="error"), group_bytes=group_bytes)
    source = jsonl(tmp_path, {"text": ""}, {"text": "w1 " * 9}, "broken")
    with pytest.raises(RecordError, match="line 1: an empty document"):
        run(source, words, CorpusOptions(capacity=5, empty="error"), group_bytes=group_bytes)


def test_groups_before_a_bad_record_come_out():
    source = IterableSource([[1], [2], [3], [-1]], block_records=1)
    groups = sequences(source.blocks(), None, CorpusOptions(capacity=5), group_bytes=1)
    assert [next(groups).counts.records for _ in range(3)] == [1, 1, 1]
    with pytest.raises(RecordError, match=r"^memory, line 4: ids\[0\] is -1; "):
        next(groups)


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
def test_mixed_kinds(words, group_bytes):
    class Mixed(Source):
        def blocks(self):
            yield from IterableSource(["w1", "w2"], name="a").blocks()
            yield from IterableSource([[1]], name="b").blocks()

    with pytest.raises(SourceError) as caught:
        run(Mixed(), words, CorpusOptions(capacity=5), group_bytes=group_bytes)
    assert str(caught.value) == ("a, line 1 is text and b, line 1 is ready-made ids; pack them in two separate jobs")


def test_text_without_a_tokenizer():
    assert message(IterableSource(["w1"]), None, OptionError) == (
        "memory, line 1 is text, and no tokenizer was given; give tokenizer="
    )


def test_no_room_is_refused_before_anything_is_read(words):
    def blocks():
        raise AssertionError("read")
        yield

    with pytest.raises(OptionError, match="leave no room for content"):
        sequences(blocks(), words, CorpusOptions(capacity=2))


def test_errors_in_the_tokenizing_thread_arrive(build_tokenizer):
    tokenizer = Tokenizer(build_tokenizer(unknown=False), name="mine")
    assert message(IterableSource(["w1 what"]), tokenizer, FormatError).startswith("mine cannot encode this text")


def test_stopping_early_leaves_no_thread(words):
    groups = sequences(
        IterableSource(["w1"] * 9, block_records=1).blocks(), words, CorpusOptions(capacity=5), group_bytes=1
    )
    next(groups)
    groups.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nopad-tokenize")]


def test_an_empty_source_gives_nothing(words):
    assert run(IterableSource([]), words, CorpusOptions(capacity=5)) == ([], Counts())


def test_texts_too_long_to_tokenise_at_once(words, monkeypatch):
    monkeypatch.setattr("nopad.corpus.records.DOCUMENT_BYTES", 20)
    texts = ["w1 w2", "w3 " * 7, "ééééééééééé", "w4"]
    source = IterableSource(texts)
    with pytest.raises(RecordError, match="2: a text of 21 bytes, above"):
        list(sequences(source.blocks(), words, CorpusOptions(capacity=16)))
    [group] = sequences(source.blocks(), words, CorpusOptions(capacity=16, on_bad_record="skip"))
    assert (group.counts.bad_skipped, group.batch.values["seq_index"].tolist()) == (2, [0, 3])


@pytest.mark.parametrize("make", [IterableSource, lambda rows: DictSource([{"input_ids": row} for row in rows])])
def test_a_record_with_more_ids_than_a_length_can_say_is_bad(monkeypatch, make):
    monkeypatch.setattr("nopad.corpus.records.MAX_TOKENS", 3)
    source = make([[1, 2, 3], [1, 2, 3, 4], [5]])
    with pytest.raises(RecordError, match="4 ids, above the 3 that a record may have; divide it"):
        list(sequences(source.blocks(), None, CorpusOptions(capacity=9)))
    out, counts = run(source, None, CorpusOptions(capacity=9, on_bad_record="skip"))
    assert (out, counts.bad_skipped) == ([([1, 2, 3], 0, 0), ([5], 2, 0)], 1)
