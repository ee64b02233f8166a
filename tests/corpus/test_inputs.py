from __future__ import annotations

import builtins
import errno
import gzip
import lzma
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nopad.corpus import open_records
from nopad.corpus.inputs import InputFile, not_utf8
from nopad.errors import RecordError, SourceError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    return path


def message(call):
    with pytest.raises(SourceError) as caught:
        call()
    return str(caught.value)


def test_found_takes_the_size(path):
    file = InputFile.found(path, "name")
    assert (file.path, file.name, file.size) == (path, "name", 8)
    assert file.whole() == b"one\ntwo\n"
    assert list(file.lines()) == [b"one\n", b"two\n"]


def test_a_missing_file(tmp_path):
    path = tmp_path / "none.txt"
    assert message(lambda: InputFile.found(path, "x")) == (
        f"{path}: no such file or folder; check the path, or put it back"
    )


def test_a_dangling_link(tmp_path):
    path = tmp_path / "link.txt"
    path.symlink_to("nowhere")
    assert message(lambda: InputFile.found(path, "x")) == (
        f"{path}: a link to something that does not exist; repair it, or remove it"
    )


def test_no_permission(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert message(lambda: InputFile.found(path, "x")) == (
        f"{path}: permission denied; make it readable, or leave it out"
    )


def test_a_pipe_is_refused_without_opening_it(tmp_path):
    path = tmp_path / "pipe.txt"
    os.mkfifo(path)
    assert message(lambda: InputFile.found(path, "x")) == (
        f"{path}: not a regular file, and nopad may have to read it twice; write it to a file first"
    )


@pytest.mark.parametrize("read", [InputFile.whole, lambda file: list(file.line_blocks())])
class TestWhileReading:
    def test_vanished(self, path, read):
        file = InputFile.found(path, "x")
        path.unlink()
        assert message(lambda: read(file)) == f"{path}: no such file or folder; check the path, or put it back"

    def test_became_a_folder(self, path, read):
        file = InputFile.found(path, "x")
        path.unlink()
        path.mkdir()
        assert message(lambda: read(file)) == f"{path}: cannot be read (Is a directory); repair it, or leave it out"

    def test_grew(self, path, read):
        file = InputFile.found(path, "x")
        path.write_bytes(b"one\ntwo\nthree\n")
        assert message(lambda: read(file)) == (
            f"{path}: changed while the job was running, from 8 bytes to 14; run again when nothing writes to it"
        )

    def test_disk_error(self, path, read, monkeypatch):
        file = InputFile.found(path, "x")

        def fail(*_args, **_kwargs):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(builtins, "open", fail)
        text = message(lambda: read(file))
        assert text == f"{path}: cannot be read (Input/output error); repair it, or leave it out"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(st.sampled_from([b"\n", b"a", b"bcd", b"\r\n"]), max_size=40).map(b"".join), size=st.integers(1, 9)
)
def test_line_blocks_are_whole_lines_with_their_numbers(tmp_path, data, size):
    path = tmp_path / "x"
    path.write_bytes(data)
    blocks = list(InputFile.found(path, "x").line_blocks(size))
    assert b"".join(block for block, _, _ in blocks) == data
    assert all(block.endswith(b"\n") for block, _, _ in blocks[:-1])
    assert all(block for block, _, _ in blocks)
    before = b""
    for block, offset, line in blocks:
        assert offset == len(before)
        assert line == before.count(b"\n") + 1
        before += block


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.lists(st.sampled_from([b"\n", b"a", b"bcd", b"\r\n"]), max_size=40).map(b"".join), size=st.integers(1, 9)
)
@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_from_each_block_on_the_same_blocks_come_again(tmp_path, name, data, size):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name == "x.gz" else data)
    file = InputFile.found(path, name)
    blocks = list(file.line_blocks(size))
    for number, (_, offset, line) in enumerate(blocks):
        assert list(file.line_blocks(size, offset, line)) == blocks[number:]


def test_a_line_longer_than_a_block_stays_whole(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a" * 1000 + b"\nb\n")
    assert list(InputFile.found(path, "x").line_blocks(64)) == [(b"a" * 1000 + b"\nb\n", 0, 1)]


def test_utf16_gets_a_hint():
    raw = "hi".encode("utf-16")
    with pytest.raises(UnicodeDecodeError) as caught:
        raw.decode()
    assert not_utf8(raw, caught.value, "file") == (
        "not UTF-8: byte 0xff at offset 0 of the file (it looks like UTF-16: convert it to UTF-8)"
    )


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_content_under_another_name_gets_a_hint(tmp_path, pack):
    path = tmp_path / "a.jsonl"
    path.write_bytes(pack(b'{"text": "yes"}\n'))
    with pytest.raises(RecordError, match=r"line 1: not UTF-8: .* \(it looks like (gzip|xz): .*decompress it first"):
        list(open_records(path))
