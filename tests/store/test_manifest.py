from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import fields
from importlib.metadata import version

import pytest

import nopad
from nopad.errors import CorruptError, FormatError
from nopad.store import Manifest, Shard, open_packed
from nopad.store.manifest import other_version, split_of, tool_versions


@pytest.fixture
def out(dataset):
    return dataset


def test_load_is_the_inverse_of_save(out, tmp_path):
    manifest = Manifest.load(out)
    (tmp_path / "copy").mkdir()
    manifest.save(tmp_path / "copy")
    assert Manifest.load(tmp_path / "copy") == manifest
    assert (tmp_path / "copy" / "nopad.json").read_bytes() == (out / "nopad.json").read_bytes()
    assert isinstance(manifest.shards[0], Shard)


def test_no_time_and_no_path_stands_in_it(out):
    text = (out / "nopad.json").read_text()
    assert str(out) not in text
    document = json.loads(text)
    assert set(document) == {field.name for field in fields(Manifest)} | {"format", "format_version", "sha256"}
    assert not [key for key in document if "time" in key or "date" in key or "path" in key]


def test_efficiency(out):
    manifest = Manifest.load(out)
    assert manifest.efficiency == manifest.tokens / (manifest.packs * 16)
    assert Manifest(**{**vars(manifest), "packs": 0, "tokens": 0}).efficiency == 1.0


def test_tool_versions_name_what_shapes_the_bytes(out):
    assert tool_versions("pyarrow", "numpy") == {
        "nopad": nopad.__version__,
        "numpy": version("numpy"),
        "pyarrow": version("pyarrow"),
    }
    assert list(Manifest.load(out).tool_versions) == ["nopad", "numpy", "pyarrow", "tokenizers"]


@pytest.mark.parametrize("reader", [Manifest.load, open_packed, nopad.verify])
def test_a_folder_that_is_no_dataset(tmp_path, reader):
    with pytest.raises(FormatError) as caught:
        reader(tmp_path)
    assert str(caught.value) == f"{tmp_path} is no packed dataset: it has no nopad.json"


@pytest.mark.parametrize("reader", [Manifest.load, open_packed])
def test_an_unfinished_folder(tmp_path, reader):
    (tmp_path / ".work").mkdir()
    with pytest.raises(CorruptError) as caught:
        reader(tmp_path)
    message = f"{tmp_path} holds an unfinished packing job; run the same `nopad pack` again to finish it"
    assert str(caught.value) == message
    assert nopad.verify(tmp_path) == [message]


def test_another_version(out, edit_manifest):
    edit_manifest(out, format_version=99)
    with pytest.raises(FormatError) as caught:
        Manifest.load(out)
    assert str(caught.value) == f"{out / 'nopad.json'} has format version 99; this nopad reads 5: pack the source again"


def test_a_manifest_without_a_version_is_damaged_for_every_reader(out):
    """`other_version` took it for one that can be read, which `Manifest.load` refused."""
    (out / "nopad.json").write_text('{"format": "nopad.packed"}')
    for read in (Manifest.load, other_version, split_of):
        with pytest.raises(CorruptError, match=r"nopad.json is damaged: it lacks format_version"):
            read(out)


@pytest.mark.parametrize("content", ['{"format": "other"}', "[]", "3", "{}"])
def test_another_format(out, content):
    (out / "nopad.json").write_text(content)
    with pytest.raises(FormatError) as caught:
        Manifest.load(out)
    assert str(caught.value) == (
        f'{out / "nopad.json"} is not the manifest of a packed dataset: it lacks "format": "nopad.packed"'
    )


@pytest.mark.parametrize("content", [b"", b'{"format": ', b"\xff\xfe"])
def test_damaged(out, content):
    (out / "nopad.json").write_bytes(content)
    with pytest.raises(CorruptError, match=r"nopad\.json is damaged: "):
        Manifest.load(out)


@pytest.mark.parametrize("name", sorted(field.name for field in fields(Manifest)))
def test_a_missing_key_is_named(out, name):
    document = json.loads((out / "nopad.json").read_text())
    del document[name]
    (out / "nopad.json").write_text(json.dumps(document))
    with pytest.raises(CorruptError, match=rf"or of another version of nopad: unexpected or missing {name}; pack"):
        Manifest.load(out)


def test_an_unknown_key_is_named(out, edit_manifest):
    path = out / "nopad.json"
    path.write_text(path.read_text().replace('"seed"', '"surprise": 1, "seed"'))
    with pytest.raises(CorruptError, match=r"unexpected or missing surprise; pack again"):
        Manifest.load(out)


@pytest.mark.parametrize("shards", [[{}], [{"file": "a", "size": 3}], [3], 3, None])
def test_damaged_shards(out, edit_manifest, shards):
    edit_manifest(out, shards=shards)
    with pytest.raises(CorruptError, match=r"nopad\.json is damaged: "):
        Manifest.load(out)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "other"),
        ("capacity", "16"),
        ("capacity", 0),
        ("depth", 0),
        ("depth", "none"),
        ("packs", -1),
        ("packs", None),
        ("sequences", 1.5),
        ("tokens", True),
        ("rows_per_group", 0),
        ("source", []),
        ("source", {}),
        ("counts", {}),
        ("counts", {"records": 3}),
        ("options", {}),
        ("options", None),
        ("tokenizer", {}),
        ("columns", None),
        ("seed", "0"),
        ("seed", 2**64),
        ("packs", 2**63),
        ("sequences", 10**30),
        ("shards", []),
    ],
)
def test_values_of_the_wrong_kind_are_refused(out, edit_manifest, name, value):
    edit_manifest(out, **{name: value})
    with pytest.raises(CorruptError, match=rf"nopad\.json is damaged: {name}"):
        Manifest.load(out)


def test_every_flipped_bit_is_noticed(out):
    path = out / "nopad.json"
    whole = path.read_bytes()
    rng = random.Random(0)
    for at in [rng.randrange(len(whole)) for _ in range(300)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        with pytest.raises((CorruptError, FormatError)):
            Manifest.load(out)


def test_it_carries_its_own_checksum(out):
    """What `docs/internals/format.md` says of it, computed by nothing of ours."""
    document = json.loads((out / "nopad.json").read_text())
    stated = document.pop("sha256")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert stated == hashlib.sha256(canonical.encode()).hexdigest()


def test_laid_out_otherwise_it_is_the_same(out):
    before = Manifest.load(out)
    document = json.loads((out / "nopad.json").read_text())
    (out / "nopad.json").write_text(json.dumps(dict(reversed(document.items()))))
    assert Manifest.load(out) == before


@pytest.mark.parametrize(("here", "gone"), [("train", "validation"), ("validation", "train")])
def test_half_of_a_pair(out, tmp_path, here, gone):
    shutil.copytree(out, tmp_path / "pair" / here)
    with pytest.raises(CorruptError) as caught:
        Manifest.load(tmp_path / "pair")
    assert str(caught.value) == f"{tmp_path / 'pair'} holds {here}, and not {gone}, which was made with it"
    assert nopad.verify(tmp_path / "pair") == [str(caught.value)]


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("source", "records", "many"),
        ("source", "bytes", []),
        ("source", "ignored", -1),
        ("options", "validation", "1%"),
        ("options", "validation", 2.0),
        ("options", "split", "test"),
        ("counts", "records", 2**64),
    ],
)
def test_values_inside_of_the_wrong_kind_are_refused(out, edit_manifest, where, name, value):
    """Someone may have made the checksum anew: `verify` computed with these, and ended in a traceback."""
    inside = json.loads((out / "nopad.json").read_text())[where]
    edit_manifest(out, **{where: {**inside, name: value}})
    with pytest.raises(CorruptError, match=rf"nopad\.json is damaged: {where}"):
        Manifest.load(out)


def test_deep_nesting_is_damage(out):
    (out / "nopad.json").write_text("[" * 100_000)
    with pytest.raises(CorruptError, match=r"nopad\.json is damaged: "):
        Manifest.load(out)
