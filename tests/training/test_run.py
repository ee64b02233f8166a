"""What a run finds out before it loads weights: texts of CSV files, rows that a model cannot take, options."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import transformers
from tests.tasks.tiny import SIZES, bert, llama, tokenizer

from nopad.cli.wording import worded
from nopad.errors import LengthError, OptionError
from nopad.tasks import Classification
from nopad.training.config import read_config
from nopad.training.loaders import find_data
from nopad.training.ready import prepare

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIG = """
[model]
name = "{folder}/{model}"
[data]
train = "{folder}/train.csv"
[task]
name = "classify"
labels = ["no", "yes"]
[packing]
capacity = 32
rows = 2
[trainer]
use_cpu = true
[output]
folder = "{folder}/out"
"""
TEXTS = ["007", "1.0", "12", "3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT and a tiny Llama without a pad id, both to classify, and texts that look like numbers."""
    folder = tmp_path_factory.mktemp("run")
    task = Classification(tokenizer(), ["no", "yes"])
    plain = tokenizer()
    bert(task).save_pretrained(folder / "bert")
    plain.save_pretrained(folder / "bert")
    llama(task, "LlamaForSequenceClassification", pad_token_id=None).save_pretrained(folder / "llama")
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain._tokenizer, unk_token="[UNK]").save_pretrained(
        folder / "llama"
    )
    (folder / "train.csv").write_text("text,label\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(TEXTS)))
    return folder


@pytest.fixture
def prepared(folder, tmp_path):
    def prepared(model, *changes, flat=False):
        path, text = tmp_path / "c.toml", CONFIG.format(folder=folder, model=model)
        path.write_text(text.replace("rows = 2", "tokens = 32").replace("capacity = 32\n", "") if flat else text)
        return prepare(read_config(path, changes), tmp_path / "cache")

    return prepared


def test_texts_of_csv_files_are_texts(prepared):
    [batch] = prepared("bert").train
    wanted = {tuple(tokenizer()(text)["input_ids"]): n % 2 for n, text in enumerate(TEXTS)}
    ids = [tuple(one.tolist()) for one in batch.unpack_tokens(batch["input_ids"])]
    assert dict(zip(ids, batch["labels"].tolist(), strict=True)) == wanted


def test_what_a_record_of_a_text_file_is(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')

    def texts(task, *changes):
        path = tmp_path / "c.toml"
        path.write_text(f'[model]\nname = "m"\n[data]\ntrain = "{tmp_path}/a.txt"\n[task]\nname = "{task}"\n')
        path.write_text(path.read_text() + '[output]\nfolder = "out"\n')
        return [one["text"] for one in find_data(read_config(path, changes))["train"]]

    assert texts("mask") == ["one", "two", "", "three"]
    assert texts("pretrain") == ["one\ntwo", "three"]
    for task in ("mask", "causal", "pretrain"):
        assert texts(task, 'data.text_unit="file"') == ["one\ntwo\n\nthree\n"]
        assert texts(task, 'data.text_unit="paragraph"') == ["one\ntwo", "three"]
    with pytest.raises(OptionError, match=r"data\.text_unit is 'file', and these records are jsonl, not text"):
        texts("mask", f"data.train={tmp_path}/a.jsonl", 'data.text_unit="file"')
    with pytest.raises(OptionError, match=r"data\.text_unit"):
        texts("mask", 'data.text_unit="page"')


def test_rows_that_a_model_cannot_take_are_refused(prepared):
    with pytest.raises(OptionError, match=r"packing.rows: this LlamaForSequenceClassification has no pad id") as raised:
        prepared("llama")
    assert "(a loader with packing.tokens, without packing.rows and packing.capacity)" in worded(
        str(raised.value), "train"
    )
    pad = SIZES["vocab_size"] - 1
    assert prepared("llama", f"model.config.pad_token_id={pad}").train.rows == 2
    assert prepared("llama", "packing.rows=1").train.rows == 1
    assert prepared("llama", flat=True).train.rows == 1


def test_what_is_too_long_names_the_field(prepared):
    with pytest.raises(LengthError) as raised:
        prepared("bert", "task.max_length=2")
    said = worded(str(raised.value), "train")
    assert 'choose task.over_long = "truncate" or "drop"' in said
    assert "--" not in said


def test_compiling_is_refused_before_data_are_read(prepared):
    with pytest.raises(OptionError, match=r"torch_compile compiles .*layer.compile\(\)"):
        prepared("bert", "trainer.torch_compile=true", "data.train=none.csv")
