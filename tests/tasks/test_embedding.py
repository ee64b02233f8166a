from __future__ import annotations

import inspect
import json
import shutil
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tokenizers
import torch
import transformers as t
from tests.model.zoo import build

import nopad
from nopad.errors import BatchError, FormatError, InputError, LengthError, OptionError
from nopad.tasks import Embedder, Texts, embed
from nopad.tasks.folder import KINDS, STATES, default_folder, read_folder

TEXTS = [
    "A pack holds several sequences.",
    "Short.",
    "Padding is computed, and thrown away; " * 12,
    "Return the number of packs, or None.",
]


@pytest.fixture(scope="module")
def embedder():
    return Embedder.from_folder()


def by_hand(texts, limit=256):
    """The usual way: one text at a time, mean over its tokens, length 1."""
    model = t.AutoModel.from_pretrained(default_folder()).eval()
    tokenizer = nopad.load_tokenizer()
    found = []
    for ids in tokenizer.encode(texts):
        row = torch.from_numpy(np.concatenate([tokenizer.prefix, ids[: limit - 2], tokenizer.suffix]))[None].long()
        with torch.no_grad():
            mean = model(input_ids=row).last_hidden_state[0].mean(0)
        found.append((mean / mean.norm()).numpy())
    return np.stack(found)


def test_the_real_model_gives_what_it_gives_alone(embedder):
    vectors = embedder.encode(TEXTS)
    assert (vectors.dtype, vectors.shape) == (np.float32, (4, 384))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, by_hand(TEXTS), atol=1e-6)


def test_what_the_folder_says(embedder):
    assert (embedder.pooling, embedder.normalize, embedder.max_tokens) == ("mean", True, 256)


def test_the_most_tokens_are_the_positions_of_the_model(embedder, folder):
    tokenizer = embedder.tokenizer
    roberta = build("roberta")  # whose positions begin at 2
    assert Embedder(roberta, tokenizer).max_tokens == 78
    for most in (79, 0):
        with pytest.raises(OptionError, match=f"max_tokens is {most}; it is at least 1, .* 78 positions"):
            Embedder(roberta, tokenizer, max_tokens=most)
    endless = Embedder(build("t5"), tokenizer)
    assert endless.max_tokens is None
    assert endless.encode_ids([[5] * 200]).shape == (1, 24)
    with pytest.raises(OptionError, match="max_tokens is 0; it is at least 1, and this model has no limit"):
        Embedder(endless.model, tokenizer, max_tokens=0)
    change(folder / "sentence_bert_config.json", max_seq_length=5000)
    assert Embedder.from_folder(folder).max_tokens == 512


def test_batches_do_not_matter(embedder):
    small = Embedder(embedder.model, embedder.tokenizer, max_tokens=256, budget=20)
    np.testing.assert_allclose(small.encode(TEXTS), embedder.encode(TEXTS), atol=1e-6)
    assert embedder.encode([]).shape == (0, 384)


def test_texts_that_are_too_long(embedder):
    long = "word " * 300
    with pytest.raises(LengthError, match=r"text 1 has 302 tokens, and 256 is the most of this model"):
        embedder.encode(["a", long])
    before = embedder.truncated
    vectors = embedder.encode([long], over_long="truncate")
    assert embedder.truncated == before + 1
    np.testing.assert_allclose(vectors, by_hand([long]), atol=1e-6)
    with pytest.raises(OptionError, match="over_long is 'split'"):
        embedder.encode(["a"], over_long="split")


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@pytest.mark.parametrize("form", [{"form": nopad.Flat()}, {"form": nopad.Rows(40)}])
def test_pooling(sequences, pooling, form):
    model = build("bert")
    with torch.no_grad():
        states = [model(input_ids=s[None]).last_hidden_state[0] for s in sequences]
    wanted = [{"mean": s.mean(0), "first": s[0], "last": s[-1]}[pooling] for s in states]
    nopad.packed(model)
    batch = nopad.PackedBatch.from_sequences(sequences, **form)
    with torch.no_grad():
        found = embed(model, batch, pooling=pooling, normalize=False)
        unit = embed(model, batch, pooling=pooling)
    torch.testing.assert_close(found, torch.stack(wanted), atol=1e-12, rtol=0)
    torch.testing.assert_close(unit, torch.nn.functional.normalize(found, dim=-1))


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(default_folder(), tmp_path / "model")


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_other_folders(folder):
    change(folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    assert Embedder.from_folder(folder).pooling == "first"
    assert Embedder.from_folder(folder, pooling="last", max_tokens=9).pooling == "last"
    change(folder / "1_Pooling" / "config.json", pooling_mode_max_tokens=True)
    with pytest.raises(FormatError, match="pools by pooling_mode_cls_token, pooling_mode_max_tokens; known are mean"):
        Embedder.from_folder(folder)
    (folder / "modules.json").unlink()
    plain = Embedder.from_folder(folder)
    assert (plain.pooling, plain.normalize) == ("mean", True)
    with pytest.raises(OptionError, match="unknown pooling 'max'"):
        Embedder.from_folder(folder, pooling="max")
    with pytest.raises(FormatError, match="is no folder with a model: it has no config"):
        Embedder.from_folder(folder.parent)
    name = "sentence-transformers/all-MiniLM-L6-v2"
    way = rf"'{name}' is no folder here, and .* takes only folders; .*snapshot_download\('{name}'\) makes one"
    with pytest.raises(FormatError, match=way):
        Embedder.from_folder(name)
    with pytest.raises(FormatError, match=r"takes only folders; give the path of a model's folder$"):
        Embedder.from_folder("./no/such/folder")


def test_a_module_that_is_not_run(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(FormatError, match=r"kind sentence_transformers\.models\.Dense, which nopad does not run"):
        Embedder.from_folder(folder)


def prompted(folder, **entries):
    (folder / "config_sentence_transformers.json").write_text(json.dumps(entries))
    return Embedder.from_folder(folder)


def test_prompts_of_the_folder(folder):
    prompts = {"query": "search query: ", "document": "a document: "}
    embedder = prompted(folder, prompts=prompts, default_prompt_name="query")
    texts = TEXTS[:2]
    np.testing.assert_allclose(embedder.encode(texts), by_hand([prompts["query"] + t for t in texts]), atol=1e-6)
    named = embedder.encode(texts, prompt_name="document")
    np.testing.assert_allclose(named, by_hand([prompts["document"] + t for t in texts]), atol=1e-6)
    np.testing.assert_allclose(
        embedder.encode(texts, prompt="find: "), by_hand(["find: " + t for t in texts]), atol=1e-6
    )
    np.testing.assert_allclose(embedder.encode(texts, prompt=""), by_hand(texts), atol=1e-6)
    with pytest.raises(OptionError, match="there is no prompt named 'querry'; there are query, document"):
        embedder.encode(texts, prompt_name="querry")
    with pytest.raises(OptionError, match="prompt and prompt_name were both given"):
        embedder.encode(texts, prompt="a", prompt_name="query")
    unnamed = prompted(folder, prompts=prompts, default_prompt_name=None)
    np.testing.assert_allclose(unnamed.encode(texts), by_hand(texts), atol=1e-6)
    with pytest.raises(FormatError, match=r"config_sentence_transformers\.json: there is no prompt named 'q'"):
        prompted(folder, prompts=prompts, default_prompt_name="q")
    with pytest.raises(OptionError, match="there is no prompt named 'query'; there are none"):
        prompted(folder, prompts={}).encode(texts, prompt_name="query")


def test_a_prompt_that_is_not_pooled(folder):
    change(folder / "1_Pooling" / "config.json", include_prompt=False)
    embedder = prompted(folder, prompts={"query": "search query: "}, default_prompt_name="query")
    import transformers

    model, tokenizer = transformers.AutoModel.from_pretrained(folder).eval(), nopad.load_tokenizer()
    wanted = []
    for text in TEXTS[:2]:
        [ids] = tokenizer.encode(["search query: " + text])
        row = torch.from_numpy(np.concatenate([tokenizer.prefix, ids, tokenizer.suffix]))[None].long()
        with torch.no_grad():
            mean = model(input_ids=row).last_hidden_state[0, 1 + 3 :].mean(0)  # [CLS] search query :
        wanted.append((mean / mean.norm()).numpy())
    np.testing.assert_allclose(embedder.encode(TEXTS[:2]), np.stack(wanted), atol=1e-6)
    np.testing.assert_allclose(embedder.encode(TEXTS[:2], prompt=""), by_hand(TEXTS[:2]), atol=1e-6)
    short = Embedder(embedder.model, embedder.tokenizer, texts=embedder.texts, max_tokens=5)
    with pytest.raises(LengthError, match="text 1 has 6 tokens, and 5 is the most"):
        short.encode(["a", "b c"], prompt="query:")
    first = Embedder(embedder.model, embedder.tokenizer, texts=embedder.texts, pooling="first")
    with pytest.raises(OptionError, match="pools the first token and does not pool prompts"):
        first.encode(["a"])


@pytest.mark.parametrize("form", [{"form": nopad.Flat()}, {"form": nopad.Rows(40)}])
def test_first_tokens_are_left_out_of_means(sequences, form):
    model = build("bert")
    long = [s for s in sequences if s.numel() > 3]
    with torch.no_grad():
        wanted = [model(input_ids=s[None]).last_hidden_state[0, 3:].mean(0) for s in long]
        nopad.packed(model)
        found = embed(model, nopad.PackedBatch.from_sequences(long, **form), normalize=False, skip=3)
        torch.testing.assert_close(found, torch.stack(wanted), atol=1e-12, rtol=0)
        with pytest.raises(LengthError, match="sequence 1 has 1 tokens, and the first 3 are left out"):
            embed(model, nopad.PackedBatch.from_sequences(sequences, **form), skip=3)
        with pytest.raises(OptionError, match="first tokens are left out of means only"):
            embed(model, nopad.PackedBatch.from_sequences(long, **form), pooling="last", skip=1)
        with pytest.raises(OptionError, match="unknown pooling 'max'"):
            embed(model, nopad.PackedBatch.from_sequences(long, **form), pooling="max")


def test_what_is_no_text_or_prompt(embedder):
    with pytest.raises(OptionError, match="text 1 is of type NoneType; expected a str"):
        embedder.encode(["a", None])
    with pytest.raises(OptionError, match="there is no prompt named 'x'; there are none"):
        Texts(default_prompt_name="x")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config_sentence_transformers.json", "{", "is no JSON"),
        pytest.param("config_sentence_transformers.json", "[" * 60_000, "is no JSON", id="deep"),
        (
            "config_sentence_transformers.json",
            "[]",
            "does not hold what sentence-transformers writes: expected a dict",
        ),
        ("config_sentence_transformers.json", '{"prompts": ["a"]}', "expected texts by name"),
        ("config_sentence_transformers.json", '{"prompts": {"q": 5}}', "expected texts by name"),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}', "'many' as max_seq_length; expected an integer"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "0 as max_seq_length; expected an integer from 1"),
        ("1_Pooling/config.json", "[]", "expected a dict"),
        ("modules.json", "{}", "expected a list"),
        ("modules.json", "[3]", "expected a list"),
        ("modules.json", '[{"idx": 0}]', "has a module of kind None"),
    ],
)
def test_a_folder_that_holds_something_else(folder, file, content, says):
    (folder / file).write_text(content)
    with pytest.raises(FormatError, match=says):
        Embedder.from_folder(folder)


def test_what_is_no_text_and_no_option(embedder):
    assert embedder.encode(iter(["a", "b"])).shape == (2, 384)
    for odd in (None, 5):
        with pytest.raises(OptionError, match="expected a list of texts"):
            embedder.encode(odd)
    with pytest.raises(OptionError, match="prompt is 5; expected a text"):
        embedder.encode(["a"], prompt=5)
    with pytest.raises(OptionError, match="sequence 0 is of type int; expected a list of ids"):
        embedder.encode_ids([5, 6])
    with pytest.raises(OptionError, match="tokenizer is None; give that of the model"):
        Embedder(embedder.model, None)
    for odd in (0, "x"):
        with pytest.raises(OptionError, match="budget must be an integer from 1"):
            Embedder(embedder.model, embedder.tokenizer, budget=odd)
    with pytest.raises(OptionError, match="max_tokens is 5; it is at least 1"):
        Embedder(embedder.model, embedder.tokenizer, max_tokens="5")
    with pytest.raises(OptionError, match="BertForMaskedLM gives no last_hidden_state; embed with the base model"):
        embed(nopad.packed(build("bert", "masked LM")), nopad.PackedBatch.from_sequences([[5, 6]]))
    with pytest.raises(OptionError, match="skip is -1; it is a number of tokens"):
        embed(embedder.model, nopad.PackedBatch.from_sequences([[5, 6]]), skip=-1)


def test_what_encode_returns(embedder, capsys):
    vectors = embedder.encode(TEXTS)
    tensor = embedder.encode(TEXTS, batch_size=64, convert_to_tensor=True, show_progress_bar=False)
    assert torch.equal(tensor, torch.from_numpy(vectors))
    assert not capsys.readouterr().err
    listed = embedder.encode(TEXTS, convert_to_numpy=False, show_progress_bar=True)
    assert [one.shape for one in listed] == [(384,)] * 4
    assert torch.equal(torch.stack(listed), tensor)
    assert "4/4" in capsys.readouterr().err
    both = embedder.encode(TEXTS, convert_to_numpy=True, convert_to_tensor=True)
    assert torch.equal(both, tensor)
    assert embedder.encode([], convert_to_tensor=True).shape == (0, 384)
    single = embedder.encode(TEXTS[1])
    assert (type(single), single.shape) == (np.ndarray, (384,))
    np.testing.assert_allclose(single, vectors[1], atol=1e-6)
    assert embedder.encode(TEXTS[1], convert_to_numpy=False).shape == (384,)
    assert embedder.encode("", truncate_dim=384).shape == (384,)  # [CLS] and [SEP] are tokens too


CALLS = {
    "plain": ((TEXTS,), {}),
    "one text": ((TEXTS[1],), {}),
    "no text": (([],), {"convert_to_tensor": True}),
    "by position": ((TEXTS, "query", None, 2, False, "sentence_embedding", "float32", False), {}),
    "by name": (
        (),
        {"inputs": TEXTS, "prompt": "find: ", "batch_size": 3, "convert_to_tensor": True, "device": "cpu"},
    ),
    "shortened": ((TEXTS,), {"truncate_dim": 100}),
    "shortened, normalised": ((TEXTS,), {"truncate_dim": 100, "normalize_embeddings": True}),
}


BYTES = ["hello world", "  hello world \n", "\thello", " ", "Hello WORLD ΟΔΟΣ <mask>", "the quick brown fox " * 9]


def saved(
    folder,
    settings=(),
    limit=None,
    prefix=False,
    pooling=None,
    modules=("Transformer", "Pooling"),
    where="",
    side=None,
    files=(),
    entry=(),
    normalizer=None,
    ends=True,
):
    """A RoBERTa of random weights with a byte-level tokenizer, as sentence-transformers saves one."""
    (folder / where).mkdir(parents=True, exist_ok=True)
    (folder / "1_Pooling").mkdir()
    torch.manual_seed(0)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    inner.train_from_iterator(["the quick brown fox", "hello world"] * 9, trainer)
    if ends:
        inner.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    if normalizer is not None:
        inner.normalizer = normalizer
    named = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special, strict=True))
    kind = t.RobertaTokenizer if prefix else t.PreTrainedTokenizerFast
    made = t.PreTrainedTokenizerFast(tokenizer_object=inner, **named, cls_token="<s>", sep_token="</s>")
    made.save_pretrained(folder / where)
    more = {"tokenizer_class": kind.__name__, "add_prefix_space": prefix} if prefix else {}
    more |= {"truncation_side": side} if side else {}
    change(folder / where / "tokenizer_config.json", **more, **({} if limit is None else {"model_max_length": limit}))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = t.RobertaConfig(**sizes, vocab_size=inner.get_vocab_size(), max_position_embeddings=66, pad_token_id=1)
    t.RobertaModel(config, add_pooling_layer=False).save_pretrained(folder / where)
    paths = {"Transformer": where, "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    entries = [
        {"idx": at, "name": str(at), "path": paths[one], "type": f"sentence_transformers.models.{one}"}
        for at, one in enumerate(modules)
    ]
    entries[-1] = {key: value for key, value in (entries[-1] | dict(entry)).items() if value is not None}
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **(pooling or {})}))
    for name, content in dict(settings).items():
        (folder / where / name).write_text(json.dumps(content))
    for name, content in dict(files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


OF_MODEL, OF_NORMALIZE = "config_sentence_transformers.json", "2_Normalize/config.json"
NORMALISED = ("Transformer", "Pooling", "Normalize")
REPLACED = tokenizers.normalizers.Sequence(
    [tokenizers.normalizers.Replace("Hello", "the quick"), tokenizers.normalizers.Lowercase()]
)


OLD = {"max_len": 9, "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
FOLDERS = {
    "white space": {},
    "limit of the settings": {"settings": {"sentence_bert_config.json": {"max_seq_length": 7}}, "limit": 5},
    "limit of the tokenizer": {"limit": 7},
    "an old name": {"settings": {"sentence_roberta_config.json": {"max_seq_length": 9, "do_lower_case": True}}},
    "lower case": {"settings": {"sentence_bert_config.json": {"max_seq_length": 40, "do_lower_case": True}}},
    "settings of the tokenizer": {"prefix": True},
    "a folder of its own": {"where": "0_Transformer"},
    "cut at the beginning": {"limit": 7, "side": "left"},
    "normalised": {"modules": ("Transformer", "Pooling", "Normalize")},
    "pooling of one mode": {"pooling": {"pooling_mode": ["cls"]}},
    "last tokens": {"pooling": {"pooling_mode_lasttoken": True}},
    "older settings beside the new one": {"pooling": {"pooling_mode": "cls", "pooling_mode_mean_tokens": True}},
    "names of special tokens that are plain text": {
        "settings": {"tokenizer_config.json": {**OLD, "max_len": 40, "split_special_tokens": True}}
    },
    "shortened": {"files": {OF_MODEL: {"truncate_dim": 8}}, "modules": NORMALISED},
    "the settings of Normalize": {
        "files": {OF_NORMALIZE: {"module_input_name": "sentence_embedding", "module_output_name": None}},
        "modules": NORMALISED,
    },
    "prompts": {
        "files": {
            OF_MODEL: {
                "model_type": "SentenceTransformer",
                "prompts": {"query": None, "document": "hello "},
                "default_prompt_name": "document",
                "requirements": {"transformers": ">=4", "python": {"specifier": ">3", "reason": "it is new"}},
                "similarity_fn_name": "cosine",
                "__version__": {"pytorch": "2.0"},
            }
        }
    },
    "numbers for booleans": {
        "pooling": {"pooling_mode_cls_token": 0, "pooling_mode_mean_tokens": 1, "include_prompt": 0},
        "files": {OF_MODEL: {"prompts": {"document": "hello "}, "default_prompt_name": "document"}},
    },
    "one pooling of numbers": {"pooling": {"pooling_mode_cls_token": 1, "pooling_mode_mean_tokens": 0}},
    "the old name of the limit": {"settings": {"tokenizer_config.json": OLD}},
    "lower case already": {
        "normalizer": REPLACED,
        "settings": {"sentence_bert_config.json": {"do_lower_case": True}},
    },
    "a prompt that ends with a special token": {
        "ends": False,
        "pooling": {"include_prompt": False},
        "files": {OF_MODEL: {"prompts": {"document": "hello </s>"}, "default_prompt_name": "document"}},
    },
    "empty settings": {"settings": {"sentence_bert_config.json": {"processing_kwargs": {}, "query_length": None}}},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", FOLDERS)
def test_a_folder_means_what_it_means_in_sentence_transformers(how, tmp_path):
    peers = pytest.importorskip("sentence_transformers")
    theirs = peers.SentenceTransformer(str(saved(tmp_path / "model", **FOLDERS[how])), device="cpu")
    ours = Embedder.from_folder(tmp_path / "model")
    found = ours.encode(BYTES, over_long="truncate")
    np.testing.assert_allclose(found, theirs.encode(BYTES), rtol=0, atol=1e-6)
    if how != "white space":
        plain = Embedder.from_folder(saved(tmp_path / "plain"))
        other = plain.encode(BYTES, over_long="truncate", truncate_dim=found.shape[1])
        assert np.abs(found - other).max() > 1e-3 or how in (
            "a folder of its own",
            "empty settings",
        )
    theirs.save_pretrained(str(tmp_path / "again"))  # as version 6 saves it
    again = Embedder.from_folder(tmp_path / "again").encode(BYTES, over_long="truncate")
    np.testing.assert_allclose(again, theirs.encode(BYTES), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        *(
            (
                {"settings": {"sentence_bert_config.json": {key: value}}},
                rf"sentence_bert_config\.json has {key} .*, which nopad does not do; remove it",
            )
            for key, value in {
                "processing_kwargs": {"text": {"max_length": 7}},
                "query_length": 6,
                "document_length": 6,
                "query_expansion": {"length": 32},
                "config_args": {"num_hidden_layers": 1},
                "tokenizer_args": {"model_max_length": 9},
                "model_args": {"dtype": "float16"},
                "transformer_task": "fill-mask",
                "modality_config": {"message": {}},
                "from_the_future": 1,
                "do_lower_case": "no",
            }.items()
        ),
        *(
            ({"files": {OF_MODEL: {key: value}}}, rf"config_sentence_transformers\.json {says}")
            for key, value, says in (
                ("model_type", "SparseEncoder", "has model_type 'SparseEncoder', which nopad does not do"),
                ("truncate_dim", 0, "has 0 as truncate_dim; expected an integer from 1"),
                ("truncate_dim", True, "has True as truncate_dim; expected an integer from 1"),
                ("from_the_future", 1, "has from_the_future 1, which nopad does not do"),
                ("requirements", {"transformers": "<1"}, r"requires transformers<1, and \d.* is installed; install"),
                (
                    "requirements",
                    {"no-such-package": ""},
                    "requires no-such-package, which is not installed; install it",
                ),
                ("requirements", {"transformers": "new"}, "requires transformers 'new', which is no range of versions"),
                ("requirements", [1], r"has \[1\] as requirements; expected versions by package"),
            )
        ),
        *(
            (
                {"modules": NORMALISED, "files": {OF_NORMALIZE: {key: "token_embeddings"}}},
                rf"2_Normalize.config\.json has {key} 'token_embeddings', which nopad does not do",
            )
            for key in ("module_input_name", "module_output_name")
        ),
        *(
            ({"entry": {key: value}}, says)
            for key, value, says in (
                *(
                    ("type", f"sentence_transformers.{kind}", f"has a module of kind sentence_transformers.{kind}, wh")
                    for kind in ("foo.Pooling", "multi_vector_encoder.modules.Pooling", "base.modules.Pooling")
                ),
                ("type", "my.Pooling", r"has a module of kind my\.Pooling, which nopad does not run"),
                ("path", None, r"modules\.json has the path None for module 1; expected a folder in"),
                ("path", "../1_Pooling", r"has the path '\.\./1_Pooling' for module 1; expected a folder in"),
                ("name", "0", r"has the names \['0', '0'\]; expected a different one for each module"),
                ("from_the_future", 1, r"modules\.json has from_the_future 1, which nopad does not do"),
                ("path", "3_Pooling", r"3_Pooling.config\.json is missing or has no embedding_dimension"),
            )
        ),
        (
            {"settings": {"sentence_bert_config.json": {"modality_config": {"text": STATES, "message": STATES}}}},
            r"sentence_bert_config\.json has modality_config with message, so that a chat template makes messages",
        ),
        ({"pooling": {"from_the_future": 1}}, r"1_Pooling.config\.json has from_the_future 1, which nopad does"),
        ({"pooling": {"include_prompt": "no"}}, r"1_Pooling.config\.json has include_prompt 'no', which nopad does"),
        ({"limit": 0}, r"tokenizer_config\.json has 0 as model_max_length; expected an integer from 1"),
        ({"limit": 7.5}, r"tokenizer_config\.json has 7\.5 as model_max_length; expected an integer from 1"),
        (
            {"modules": ("Transformer", "Normalize", "Pooling")},
            "has the modules Transformer, Normalize, Pooling; expected Transformer, Pooling, Normalize",
        ),
        ({"modules": ("Pooling", "Transformer")}, "has the modules Pooling, Transformer; expected"),
        ({"modules": ("Transformer", "Transformer")}, "has the modules Transformer, Transformer; expected"),
        ({"pooling": {"pooling_mode": ["mean", "cls"]}}, r"pools by \['mean', 'cls'\]; known are mean"),
        ({"pooling": {"pooling_mode": None}}, "pools by None; known are mean"),
        ({"modules": ("Transformer",)}, "has the modules Transformer; expected Transformer, Pooling, Normalize"),
        ({"modules": ("Transformer", "Normalize")}, "has the modules Transformer, Normalize; expected Transformer, Po"),
    ],
)
def test_what_a_folder_asks_for_is_done_or_refused(how, says, tmp_path):
    with pytest.raises(FormatError, match=says):
        Embedder.from_folder(saved(tmp_path / "model", **how))


def test_older_settings_beside_the_new_one(tmp_path):
    """sentence-transformers leaves them out."""
    config = {"pooling_mode": "cls", "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert Embedder.from_folder(saved(tmp_path / "model", pooling=config)).pooling == "first"


def test_the_names_of_the_modules_are_those_of_sentence_transformers():
    util = pytest.importorskip("sentence_transformers.util")
    assert all(util.import_from_string(name).__name__ == kind for name, kind in KINDS.items())


def test_a_limit_above_the_positions_of_a_rotary_model(tmp_path):
    """sentence-transformers runs longer texts there, and cuts none; with learned positions, it fails."""
    path = saved(tmp_path / "model", settings={"sentence_bert_config.json": {"max_seq_length": 55}})
    assert read_folder(path, 40)["max_tokens"] == 40
    assert read_folder(path, 55, rotary=True)["max_tokens"] == 55
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = t.LlamaConfig(**sizes, vocab_size=300, max_position_embeddings=40)
    t.LlamaModel(config).save_pretrained(path)
    with pytest.raises(FormatError, match=r"has 55 as max_seq_length, and the model has 40 .* lower it to 40"):
        Embedder.from_folder(path)


def test_vectors_of_a_folder_that_shortens_them(tmp_path):
    """By default, in every way to embed; the argument of `encode` goes before."""
    path = saved(tmp_path / "model", files={OF_MODEL: {"truncate_dim": 8}})
    embedder, whole = Embedder.from_folder(path), Embedder.from_folder(path, truncate_dim=None).encode(BYTES[:2])
    assert whole.shape == (2, 32)
    with nopad.PackRunner(embedder, warm_up=False) as runner:
        for found in (embedder.encode(BYTES[:2]), runner(BYTES[:2])):
            np.testing.assert_allclose(found, whole[:, :8], atol=1e-6)
        assert runner([]).shape == embedder.encode([]).shape == embedder.encode_ids([]).shape == (0, 8)
    assert embedder.encode_ids([[5, 6]]).shape == (1, 8)
    np.testing.assert_allclose(embedder.encode(BYTES[:2], truncate_dim=16), whole[:, :16], atol=1e-6)
    with pytest.raises(OptionError, match="truncate_dim is 33, and vectors of this model have 32 dimensions"):
        Embedder.from_folder(path, truncate_dim=33)
    with pytest.raises(FormatError, match=r"shortened vectors \(truncate_dim\), which only nopad\.Embedder"):
        nopad.tasks.Embedding.found_options(path)


def test_a_model_that_is_not_where_the_folder_says(tmp_path):
    path = saved(tmp_path / "model", where="0_Transformer")
    (path / "0_Transformer" / "config.json").unlink()
    with pytest.raises(FormatError, match=r"modules\.json names .*0_Transformer for the model, which has no config"):
        Embedder.from_folder(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what sentence-transformers imports
def test_encode_drops_in_for_that_of_sentence_transformers(folder):
    """The same calls of both give the same types, shapes and values."""
    peers = pytest.importorskip("sentence_transformers")
    ours = prompted(folder, prompts={"query": "query: ", "document": "a text: "}, default_prompt_name="document")
    theirs = peers.SentenceTransformer(str(folder), device="cpu")
    assert list(inspect.signature(ours.encode).parameters)[:12] == [
        name for name in inspect.signature(theirs.encode).parameters if name not in ("pool", "chunk_size", "kwargs")
    ]
    for call, (given, how) in CALLS.items():
        for method in ("encode", "encode_query", "encode_document"):
            wanted = getattr(theirs, method)(*given, **how)
            found = getattr(ours, method)(*given, **how)
            assert type(found) is type(wanted), call
            if isinstance(wanted, list):
                found, wanted = torch.stack(found), torch.stack(wanted)
            if len(wanted):
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), call
                np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=0, atol=1e-6, err_msg=call)


def test_prompts_of_queries_and_documents(folder):
    named = {"passage": "a passage: ", "corpus": "a corpus: ", "other": "other: "}
    embedder = prompted(folder, prompts=named, default_prompt_name="other")
    texts = TEXTS[:2]
    for found, before in (
        (embedder.encode(texts), "other: "),
        (embedder.encode_query(texts), ""),
        (embedder.encode_query(texts, "corpus"), "a corpus: "),
        (embedder.encode_document(texts), "a passage: "),
        (embedder.encode_document(texts, prompt="x: ", batch_size=1), "x: "),
    ):
        np.testing.assert_allclose(found, by_hand([before + text for text in texts]), atol=1e-6)


def test_how_many_texts_run_at_a_time(embedder):
    seen = []
    hook = embedder.model.register_forward_pre_hook(
        lambda _, given, named: seen.append(int((named["position_ids"] == 0).sum())), with_kwargs=True
    )
    vectors = [embedder.encode(TEXTS, batch_size=most) for most in (1, 3, None)]
    hook.remove()
    assert seen == [1, 1, 1, 1, 3, 1, 4]
    for some in vectors[:2]:
        np.testing.assert_allclose(some, vectors[2], rtol=0, atol=1e-6)


def test_normalised_where_the_model_is_not(embedder):
    plain = Embedder(embedder.model, embedder.tokenizer, normalize=False, max_tokens=256)
    vectors = plain.encode(TEXTS)
    assert (np.linalg.norm(vectors, axis=1) > 1.5).all()
    np.testing.assert_allclose(plain.encode(TEXTS, normalize_embeddings=True), embedder.encode(TEXTS), atol=1e-6)
    # as there, False leaves the model's own normalisation as it is
    np.testing.assert_allclose(embedder.encode(TEXTS, normalize_embeddings=False), embedder.encode(TEXTS), atol=0)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            {"precision": "int8"},
            "precision is 'int8', and encode returns float32 vectors only; quantise them afterwards",
        ),
        ({"output_value": "token_embeddings"}, "output_value is 'token_embeddings', and encode returns one vector per"),
        ({"device": "cuda"}, "device is 'cuda', and the model is on cpu; move it there before"),
        ({"truncate_dim": 0}, "truncate_dim must be an integer from 1"),
        ({"truncate_dim": 385}, "truncate_dim is 385, and vectors of this model have 384 dimensions"),
        ({"batch_size": 0}, "batch_size must be an integer from 1"),
        ({"batch_size": "32"}, "batch_size must be an integer from 1"),
        ({"convert_to_tensor": 1}, "convert_to_tensor must be one of True, False"),
        ({"normalize_embeddings": None}, "normalize_embeddings must be one of True, False"),
        ({"show_progress_bar": "yes"}, "show_progress_bar must be one of True, False"),
    ],
)
def test_options_of_encode_that_are_refused(embedder, how, says):
    with pytest.raises(OptionError, match=says):
        embedder.encode(["a"], **how)


def test_a_tokenizer_of_transformers_will_do(embedder):
    from transformers import AutoTokenizer

    other = Embedder(embedder.model, AutoTokenizer.from_pretrained(default_folder()), max_tokens=256)
    np.testing.assert_allclose(other.encode(TEXTS[:2]), embedder.encode(TEXTS[:2]), atol=1e-6)


def test_a_model_in_training_drops_nothing_out(embedder):
    config = t.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    model = t.BertModel(config)  # drops a tenth out in training
    mine = Embedder(model, embedder.tokenizer)
    wanted = mine.encode(TEXTS)
    model.train()
    model.pooler.eval()
    for _ in range(2):
        assert np.array_equal(mine.encode(TEXTS), wanted)
    assert model.training
    assert model.encoder.training
    assert not model.pooler.training


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda it: it.encode({"a": 1}), "inputs are of type dict; expected a list of texts"),
        (lambda it: it.encode({"a", "b"}), "inputs are of type set; expected a list of texts"),
        (lambda it: it.encode_ids(5), "sequences are of type int; expected a list of lists of ids"),
        (lambda it: it.encode_ids("ab"), "sequences are of type str"),
        (lambda it: Embedder(it.model, it.tokenizer, texts={"prompts": {}}), "texts are of type dict; expected nopad"),
        (
            lambda it: Embedder(it.model, it.tokenizer, max_tokens=1),
            "max_tokens is 1, and this tokenizer puts 2 tokens",
        ),
        (lambda it: Embedder.from_folder(5), "folder is of type int; expected a path"),
    ],
)
def test_what_is_no_list_of_texts(embedder, call, says):
    with pytest.raises(OptionError, match=says):
        call(embedder)


@pytest.mark.parametrize("config", ["{bad", '{"model_type": "of tomorrow"}', '{"model_type": "bert"}'])
def test_a_folder_that_transformers_cannot_load(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(FormatError, match="transformers cannot load the model in"):
        Embedder.from_folder(tmp_path)


def test_embed_wants_a_pack_safe_model_and_one_side_of_a_batch(embedder):
    batch = nopad.PackedBatch.from_sequences([[5, 6], [7]])
    with pytest.raises(OptionError, match="is not pack-safe; make it so"):
        embed(t.BertModel(t.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)), batch)
    with pytest.raises(BatchError, match=r"sources and targets, each with a layout of their own; give batch\.targets"):
        embed(embedder.model, batch.with_decoder([[5], [6, 7]], 1))


def test_the_repr_says_how_vectors_are_made():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = t.BertModel(t.BertConfig(**sizes))
    made = Embedder(model, nopad.load_tokenizer(), pooling="first", normalize=False, max_tokens=64)
    assert repr(made) == "Embedder(BertModel, first pooling, at most 64 tokens per text)"


def test_messages_have_the_numbers_of_the_sequences_as_given(embedder):
    for sequences, error, says in (
        ([[5] * 9, [6], []], LengthError, "sequence 2 has no token"),
        ([[5], [6], [7] * 513, [8]], LengthError, "sequence 2 has 513 tokens, and the model has 512 positions"),
        ([[5] * 9, [6, 40_000], [7]], BatchError, "sequence 1 has the id 40000, and the model has 30522 tokens"),
        ([[5] * 9, [6], [7, -1, 3]], BatchError, "sequence 2 has the id -1"),
    ):
        with pytest.raises(error, match=says):
            embedder.encode_ids(sequences)


def test_sequences_of_ids_are_found_by_their_place(embedder):
    """A series whose index was shuffled gave the vectors of other sequences."""
    sequences = [[5, 6, 7], [8], [9, 4]]
    expected = embedder.encode_ids(sequences)
    for given in (
        pd.Series(sequences, index=[2, 0, 1]),
        pd.Series([[1], *sequences])[1:],
        dict(enumerate(sequences)).values(),
        pa.array(sequences),
        [torch.tensor(ids, dtype=torch.int32) for ids in sequences],
    ):
        assert np.array_equal(embedder.encode_ids(given), expected)


@pytest.mark.parametrize(
    "given",
    [
        pd.DataFrame({"a": [[5], [6]]}),
        np.array(5),
        [[5, [6, 7]]],
        [np.array(5)],
        [np.ma.array([5, 6], mask=[0, 1])],
        [pd.array([5, None], dtype="Int64")],
        [torch.ones(2, requires_grad=True)],
        [torch.ones(2, dtype=torch.bfloat16)],
        [torch.tensor([5]).to_sparse()],
        [[5], [True]],
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_are_no_ids_is_refused(embedder, given):
    with pytest.raises(InputError):
        embedder.encode_ids(given)


def test_runs_of_one_length_share_a_call_of_attention(monkeypatch):
    room, asked = sys.modules["nopad.model.backends.segments"], []
    monkeypatch.setattr(room, "attend", lambda q, *rest, real=room.attend: (asked.append(q.shape), real(q, *rest))[1])
    model = nopad.packed(build("bert"))
    sequences = [[7, 8, 9], [9, 8, 7], [5] * 4, [6, 6, 6], [4], [3], [2]]
    with torch.no_grad():
        batch = nopad.PackedBatch.from_sequences(sequences)
        found = batch.unpack_tokens(model(**batch)[0])
        layers = model.config.num_hidden_layers
        assert [(shape[0], shape[2]) for shape in asked] == [(2, 3), (1, 4), (1, 3), (3, 1)] * layers
        for ids, one in zip(sequences, found, strict=True):
            torch.testing.assert_close(one, model(input_ids=torch.tensor([ids]))[0][0], rtol=0, atol=1e-12)
