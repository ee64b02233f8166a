"""Documents of any source as pairs: pools, the same bytes however they are read, resuming, and what is refused."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pytest

import nopad
from nopad.corpus import (
    CorpusOptions,
    IterableSource,
    PairOptions,
    PretrainingSource,
    ReaderOptions,
    load_tokenizer,
    open_source,
    sequences,
)
from nopad.corpus.encoders import Encoder
from nopad.corpus.pretraining import FEWEST, options_from_settings
from nopad.corpus.records import Origin, Records, within_vocabulary
from nopad.corpus.text import decode_paragraphs
from nopad.errors import OptionError, RecordError, SourceError
from nopad.sequences import Sequences
from nopad.store import PackOptions, pack_corpus

WORDS = [f"w{n}" for n in range(60)]


@cache
def tokenizer(without=None):
    import tokenizers
    from tokenizers import models, pre_tokenizers

    special = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name != without]
    made = tokenizers.Tokenizer(models.WordLevel({w: n for n, w in enumerate(special + WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return load_tokenizer(made)


def texts(count=60, seed=0):
    rng = np.random.default_rng(seed)
    return [
        "\n".join(" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(rng.integers(1, 6)))
        for _ in range(count)
    ]


def options(**more):
    return PairOptions(**{"max_length": 24, "sentences": "line", "pool_bytes": 1500, **more})


def source_of(given, **more):
    return PretrainingSource(IterableSource(given, block_records=7), tokenizer(), options(**more))


def made_of(source, capacity=24):
    """All pairs of a source: (ids, types, masks, next sentence)."""
    found = []
    for group in sequences(source.blocks(), None, CorpusOptions(capacity=capacity)):
        ends = np.cumsum(group.batch.seq_lengths)[:-1]
        columns = [np.split(column, ends) for _, column in sorted(group.batch.tokens.items())]
        labels = group.batch.values["next_sentence_label"].to_pylist()
        found += [tuple([part.tolist() for part in parts] + [n]) for *parts, n in zip(*columns, labels, strict=True)]
    return found


def test_columns_and_counts():
    source = source_of(texts())
    assert [(c.name, c.per, c.type) for c in source.carried] == [
        ("token_type_ids", "token", "int8"),
        ("maskable", "token", "int8"),
        ("next_sentence_label", "sequence", "int64"),
    ]
    groups = list(sequences(source.blocks(), None, CorpusOptions(capacity=24)))
    counts = sum((group.counts for group in groups), nopad.corpus.Counts())
    pairs = made_of(source)
    assert (counts.documents, counts.records, counts.sequences) == (60, len(pairs), len(pairs))
    assert counts.random_next == sum(pair[-1] for pair in pairs)
    assert source_of(texts(), static=True).carried[1].name == "labels"


def test_pools_are_of_whole_documents_and_never_small():
    given = texts(200)
    blocks = list(source_of(given).blocks())
    assert len(blocks) > 3
    held = [json.loads(block.data) for block in blocks]
    assert [text for pool in held for text in pool] == given
    assert all(len(pool) >= FEWEST and sum(map(len, pool)) >= 750 for pool in held)
    assert [block.first_line for block in blocks] == [1 + sum(map(len, held[:at])) for at in range(len(held))]
    assert len(list(source_of(given[:20]).blocks())) == 1


def test_second_sides_are_of_other_documents_of_the_pool():
    given = [f"{a} {a} {a}\n{a} {a}" for a in WORDS]  # each word is one document's own
    (block,) = source_of(given, pool_bytes=1 << 20, copies=20).blocks()
    (run,) = block.records()
    ids, types = run.ids.tokens["input_ids"], run.ids.tokens["token_type_ids"]
    seen = set()
    for begin, length, label in zip(
        run.ids.begins.tolist(),
        run.ids.seq_lengths.tolist(),
        run.values["next_sentence_label"].to_pylist(),
        strict=True,
    ):
        part, kinds = ids[begin : begin + length], types[begin : begin + length]
        sides = [set(part[(kinds == side) & (part > 4)].tolist()) for side in (0, 1)]
        assert (sides[0] == sides[1]) == (label == 0)
        seen |= {(min(sides[0]), other) for other in sides[1]} if label else set()
    assert len({other for _, other in seen}) == len(WORDS)


def numbered(number):
    return number, made_of_block(list(source_of(texts(200), static=True).blocks())[number])


def made_of_block(block):
    (run,) = block.records()
    return {name: column.tolist() for name, column in run.ids.tokens.items()}


def test_blocks_are_the_same_in_any_process_and_order():
    source = source_of(texts(200), static=True)
    wanted = [made_of_block(block) for block in source.blocks()]
    assert [made_of_block(block) for block in reversed(list(source.blocks()))][::-1] == wanted
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = dict(pool.map(numbered, range(len(wanted))))
    assert [found[number] for number in range(len(wanted))] == wanted


def test_a_stopped_job_goes_on_to_the_same_bytes(tmp_path):
    given = texts(300)
    whole = pack_corpus(source_of(given), tmp_path / "whole", CorpusOptions(capacity=48))

    class Stopped(PretrainingSource):
        def blocks(self):
            for number, block in enumerate(super().blocks()):
                if number == 4:
                    raise KeyboardInterrupt
                yield block

    stopped = Stopped(IterableSource(given, block_records=7), tokenizer(), options())
    with pytest.raises(nopad.NopadError, match="stopped"):
        pack_corpus(stopped, tmp_path / "again", CorpusOptions(capacity=48), commit_every_s=0.0)
    again = pack_corpus(source_of(given), tmp_path / "again", CorpusOptions(capacity=48))
    assert again == whole
    for path in (tmp_path / "whole").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "whole")).read_bytes()
    assert nopad.verify(tmp_path / "again", source=source_of(given)) == []
    assert "read in another way" in nopad.verify(tmp_path / "again", source=source_of(given, seed=1))[0]


def test_the_seed_the_copies_and_the_place_decide():
    given = texts(40)
    assert made_of(source_of(given)) == made_of(source_of(given))
    assert made_of(source_of(given, seed=1)) != made_of(source_of(given))
    pairs = made_of(source_of(given, copies=3))
    assert len(pairs) > 2.4 * len(made_of(source_of(given)))
    moved = made_of(source_of(given, static=True, seed=1)), made_of(source_of(given, static=True, seed=2))
    assert moved[0] != moved[1]


def test_any_source_of_texts(tmp_path):
    given = texts(20)
    (tmp_path / "a.txt").write_text("\n\n \n".join(given))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in given))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"body": given}), tmp_path / "c.parquet")
    wanted = made_of(source_of(given, pool_bytes=1 << 20))
    for name, reader in (
        ("a.txt", ReaderOptions(text_unit="paragraph")),
        ("b.jsonl", ReaderOptions(text_field="body")),
        ("c.parquet", ReaderOptions(text_field="body")),
    ):
        opened = open_source(tmp_path / name, reader)
        assert made_of(PretrainingSource(opened, tokenizer(), options(pool_bytes=1 << 20))) == wanted
    folder = tmp_path / "files"
    folder.mkdir()
    for number, text in enumerate(given):
        (folder / f"{number:02}.txt").write_text(text)
    assert made_of(PretrainingSource(open_source(folder), tokenizer(), options(pool_bytes=1 << 20))) == wanted


def test_named_sources_do_not_mix():
    names = {"a": WORDS[:30], "b": WORDS[30:]}
    given = {name: [{"text": f"{w} {w}\n{w}"} for w in words] for name, words in names.items()}
    source = PretrainingSource(open_source(given), tokenizer(), options(pool_bytes=1 << 20))
    blocks = list(source.blocks())
    assert [block.source for block in blocks] == ["a", "b"] == list(source.names)
    for block, words in zip(blocks, names.values(), strict=True):
        ids = {int(one) for one in made_of_block(block)["input_ids"]} - {0, 1, 2, 3, 4}
        assert ids == {5 + WORDS.index(word) for word in words}


def test_paragraphs_of_a_file(tmp_path):
    data = b"\xef\xbb\xbfone\r\ntwo\r\n\r\n\r\n  \nthree\n\n\nfour\nfive"
    found = [(record.line, record.text) for record in decode_paragraphs(data, 1)]
    assert found == [(1, "one\ntwo"), (6, "three"), (9, "four\nfive")]
    lines = "\n".join(f"{n} " * (n % 7) for n in range(500))
    path = tmp_path / "a.txt"
    path.write_text(lines)
    whole = [(r.line, r.text) for r in decode_paragraphs(path.read_bytes(), 1)]
    for size in (16, 50, 300, 1 << 20):
        source = open_source(path, ReaderOptions(text_unit="paragraph"), block_bytes=size)
        blocks = list(source.blocks())
        assert [(r.line, r.text) for block in blocks for r in block.records()] == whole
        for number, block in enumerate(blocks):
            assert [b.data for b in source.blocks_from(block.at)] == [b.data for b in blocks[number:]]


def test_what_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"memory, line 1: 1 document with a text, .* give at least two, or divide"):
        list(source_of(["w1 w2\nw3", " \n "]).blocks())
    with pytest.raises(SourceError, match="this input holds ready-made ids; give the texts"):
        source_of([[1, 2, 3]])
    with pytest.raises(RecordError, match="none has two sentences, so no sentence follows another"):
        made_of(source_of(["w1", "w2", "w3"]))
    with pytest.raises(RecordError, match=r"memory, line 2: a sentence of 40 tokens, .* 24 of a pair it may have 20"):
        made_of(source_of(["w1\nw2", "w1 " * 40, "w3"]))
    with pytest.raises(RecordError, match="memory, line 2: an empty document"):
        made_of(source_of(["w1\nw2", " ", "w3"], empty="error"))
    given = CorpusOptions(capacity=24)
    with pytest.raises(OptionError, match="so none of them can be held out"):
        pack_corpus(source_of(texts()), tmp_path / "out", given, packing=PackOptions(validation=0.1))
    table = open_source([{"text": "w1", "label": 1}] * 3, ReaderOptions(carry=["label"]))
    with pytest.raises(SourceError, match="the column 'label' cannot be carried: a document becomes many pairs"):
        PretrainingSource(table, tokenizer())


def test_bad_documents_are_named_and_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}) for text in texts(20)]
    path.write_text("\n".join([*lines[:9], '{"text": 5}', *lines[9:]]))
    source = PretrainingSource(open_source(path), tokenizer(), options())
    with pytest.raises(RecordError, match=r"a.jsonl, line 10: 'text' is 5, not a string"):
        made_of(source)
    groups = list(sequences(source.blocks(), None, CorpusOptions(capacity=24, on_bad_record="skip")))
    assert sum(group.counts.bad_skipped for group in groups) == 1
    assert sum(group.counts.documents for group in groups) == 20


def test_pairs_beyond_the_vocabulary_take_no_counts_with_them():
    """The counts of a pool went with the first pair that had such an id."""
    skipping = CorpusOptions(capacity=24, vocab_size=40, on_bad_record="skip")
    usual = [group.counts for group in sequences(source_of(texts()).blocks(), None, CorpusOptions(capacity=24))]
    found = [group.counts for group in sequences(source_of(texts()).blocks(), None, skipping)]
    assert sum(counts.bad_skipped for counts in found) > 0
    for name in ("documents", "random_next"):
        assert sum(getattr(counts, name) for counts in found) == sum(getattr(counts, name) for counts in usual) > 0


@pytest.mark.parametrize("bad", [[0], [1, 3], [4], [0, 1, 2, 3, 4]])
def test_records_keep_their_numbers_beside_bad_sequences(bad):
    """Of records 0, 2 and 3 of 5, an encoder made 1, 3 and 1 sequences."""
    origin = Origin(record=np.array([0, 2, 2, 2, 3]), of=5)
    ids = Sequences(seq_lengths=np.ones(5, np.int32), tokens={"input_ids": np.isin(np.arange(5), bad).astype(np.int32)})
    run = Records(lines=np.arange(1, 6), ids=ids, origin=origin, counts={"documents": 9})
    passed, numbers, lines, counts = 0, [], [], []
    for one in within_vocabulary(run, 1):
        if isinstance(one, Records):
            numbers += (passed + one.origin.record).tolist()
            lines += one.lines.tolist()
            counts.append(one.counts.get("documents", 0))
        passed += one.origin.of if isinstance(one, Records) else 1
    good = [n for n in range(5) if origin.record[n] not in origin.record[bad]]
    assert (passed, sum(counts)) == (5, 9)
    assert (numbers, lines) == (origin.record[good].tolist(), [n + 1 for n in good])


def test_a_record_is_bad_once_for_all_its_sequences(tmp_path):
    """Each bad sequence was counted as a bad record, and the dataset failed its verification."""

    class Thirds(Encoder):
        content, reads, columns = "input_ids", ("ids",), {"input_ids": pa.list_(pa.int32())}

        def encode(self, records):
            return [[{"input_ids": [one]} for one in record["ids"]] for record in records], {}

        def settings(self):
            return {"encoder": "thirds"}

    given = [{"ids": ids} for ids in ([1, 2, 3], [1, 99, 3], [99, 99, 99], [4], [5, 6, 99])]
    skipping = CorpusOptions(capacity=4, vocab_size=40, on_bad_record="skip")
    made = pack_corpus(open_source(given, encoder=Thirds()), tmp_path / "out", skipping)
    assert (made.counts["records"], made.counts["bad_skipped"], made.sequences) == (5, 3, 4)
    assert nopad.verify(tmp_path / "out") == []


def test_settings_bring_the_options_back():
    source = source_of(texts(), copies=3, over_long="split", static=True, max_predictions=2)
    settings = json.loads(json.dumps(source.settings()))
    assert options_from_settings(settings) == source.options
    assert options_from_settings({"text_unit": "file"}) is None


def test_counts_of_documents_and_sentences_are_proven_again(tmp_path):
    given = [*texts(30), " ", "w1 " * 50 + "\nw2", ""]
    source = source_of(given, over_long="truncate")
    made = pack_corpus(source, tmp_path / "out", CorpusOptions(capacity=24))
    counts = {name: made.counts[name] for name in ("documents", "documents_empty", "long_sentences", "empty_skipped")}
    assert counts == {"documents": 31, "documents_empty": 2, "long_sentences": 1, "empty_skipped": 0}
    assert made.counts["long_sentences_tokens"] == 30
    assert made.counts["records"] == made.sequences
    assert nopad.verify(tmp_path / "out", source=source) == []


def test_names_of_special_tokens_in_a_text_are_text():
    import tokenizers

    inner = tokenizers.Tokenizer.from_str(tokenizer()._inner.to_str())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made = load_tokenizer(inner)
    given = ["w1 [SEP] w2\nw3 [MASK] [CLS] [PAD] w4", "w5 w6\nw7", "w8\nw9"]
    once = pickle.loads(pickle.dumps(made))
    once.plain_encodings(["w1"])
    for used in (made, pickle.loads(pickle.dumps(once))):
        source = PretrainingSource(IterableSource(given), used, options(max_length=64, copies=9))
        [batch] = (group.batch for group in sequences(source.blocks(), None, CorpusOptions(capacity=64)))
        pairs = np.split(batch.tokens["input_ids"], np.cumsum(batch.seq_lengths)[:-1])
        assert all([int((pair == one).sum()) for one in (0, 2, 3, 4)] == [0, 1, 2, 0] for pair in pairs)
        assert {6, 7, 8, 9} <= set(np.concatenate(pairs).tolist())  # the words beside them
        assert used.encode(["w1 [SEP]"])[0].tolist() == [6, 3]  # which other uses read as before


def test_a_text_that_gives_what_pairs_are_made_with_is_refused():
    with pytest.raises(
        RecordError, match=r"document 1 of these, from 0, has a text of which the tokenizer makes \[SEP"
    ):
        made_of(source_of(["w1\nw2", "w3\nw4 [SEP]", "w5"]))


def test_too_few_documents_are_told_with_the_bad_ones(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"w1\n\xff\n\nw2\nw3\n")
    source = open_source(tmp_path / "a.txt", ReaderOptions(text_unit="paragraph"))
    with pytest.raises(SourceError, match=r"1 document with a text \(.*a.txt, line 1: not UTF-8"):
        list(PretrainingSource(source, tokenizer(), options()).blocks())


def test_pairs_of_one_length_are_not_taken_for_padded(tmp_path, recwarn):
    """Their ids are made here, so none of them is padding."""
    same = ["\n".join(["w1 w2 w3"] * 2)] * 40
    source = PretrainingSource(IterableSource(same), tokenizer(), options(max_length=9, short=0.0))
    found = made_of(source)
    assert {len(ids) for ids, *_ in found} == {9}
    pack_corpus(source, tmp_path / "packed", CorpusOptions(capacity=18))
    assert [str(one.message) for one in recwarn] == []
