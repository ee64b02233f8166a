"""Without network, a name is an error within seconds, in one line, and whatever a cache has is still read."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time

import pytest

from nopad.corpus import load_tokenizer, network, open_source
from nopad.corpus.network import hub_in_reach, reachable
from nopad.errors import FormatError, SourceError


@pytest.fixture
def silent_host(monkeypatch):
    """A host that takes no connection and never says so, as behind a firewall."""
    released = threading.Event()

    def hang(where, timeout=None):
        released.wait(30)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr("nopad.corpus.network.WAIT_S", 0.2)
    yield
    released.set()


def test_a_host_that_answers(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert reachable(f"http://127.0.0.1:{server.getsockname()[1]}/path")
        port = server.getsockname()[1]
    assert not reachable(f"http://127.0.0.1:{port}")


def test_the_proxy_is_asked_where_there_is_one(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": proxy})
        assert reachable("https://no.such.host.invalid")


@pytest.mark.parametrize("name", ["hf:some/name", "s3://bucket/a.parquet", "gs://bucket", "https://host/a.jsonl"])
def test_sources_are_refused_within_seconds(silent_host, capfd, name):
    pytest.importorskip("datasets")
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"did not answer within .* s") as caught:
        open_source(name)
    assert time.monotonic() - begun < 5
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_tokenizer_is_refused_within_seconds(silent_host, capfd):
    begun = time.monotonic()
    with pytest.raises(FormatError, match=r"did not answer within .* s, and its cache here does not have it"):
        load_tokenizer("some/name-that-nobody-has")
    assert time.monotonic() - begun < 5
    assert capfd.readouterr().err == ""


OF_MODELS = {
    "audit": ("audit", "some/name-that-nobody-has"),
    "derive": ("audit", "--derive", "some/name-that-nobody-has"),
    "predict": ("predict", "a.jsonl", "-o", "out", "--model", "some/name-that-nobody-has", "--task", "classify"),
    "predict without a task": ("predict", "a.jsonl", "-o", "out", "--model", "some/name-that-nobody-has"),
    "train": ("train", "c.toml"),
}


@pytest.mark.parametrize("arguments", OF_MODELS.values(), ids=list(OF_MODELS))
def test_a_model_is_refused_within_seconds_in_the_same_words(silent_host, capfd, tmp_path, monkeypatch, arguments):
    pytest.importorskip("accelerate")
    import transformers.trainer  # noqa: F401, not counted

    from nopad.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "yes", "label": "yes"}\n')
    text = (
        'model.name = "some/name-that-nobody-has"\ndata.train = "a.jsonl"\ntask.name = "classify"\noutput.folder = "r"'
    )
    (tmp_path / "c.toml").write_text(text)
    asked = []
    inner = network.reachable
    monkeypatch.setattr(network, "reachable", lambda url: asked.append(url) or inner(url))
    begun = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert time.monotonic() - begun < 15  # imports count too; huggingface_hub alone retries for much longer
    assert stop.value.code == 2
    assert len(asked) == 1
    out, err = capfd.readouterr()
    assert out == ""
    told = re.fullmatch(r"nopad: 'some/name-that-nobody-has' is no folder here,? and (?:its \w+ )?(.*)\n", err)[1]
    assert told == (
        f"could not be had from the Hugging Face hub ({network.NOT_REACHED}); check the name and the network, or give "
        "the path of a model's folder"
    )


def test_a_path_that_is_not_there_has_the_same_words(capfd, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from nopad.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "yes"}\n')
    told = set()
    for arguments in (("audit",), ("predict", "a.jsonl", "-o", "out", "--task", "classify", "--model")):
        with pytest.raises(SystemExit):
            main([*arguments, "path/that/does/not/exist"])
        told.add(capfd.readouterr().err)
    [line] = told
    assert line.startswith("nopad: 'path/that/does/not/exist' is no folder here and could not be had from the Hugging ")
    assert line.count("\n") == 1


def test_what_was_switched_is_switched_back(silent_host):
    constants = pytest.importorskip("huggingface_hub").constants
    before = constants.HF_HUB_OFFLINE, logging.getLogger("huggingface_hub").level
    with hub_in_reach() as online:
        assert not online
        assert constants.HF_HUB_OFFLINE is True
    assert (constants.HF_HUB_OFFLINE, logging.getLogger("huggingface_hub").level) == before


def test_endpoints_that_the_environment_sets(silent_host, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio.local:9000")
    with pytest.raises(SourceError, match=r"http://minio\.local:9000 did not answer"):
        open_source("s3://bucket/a.parquet")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(SourceError, match=r"https://s3\.eu-west-1\.amazonaws\.com did not answer"):
        open_source("s3://bucket/a.parquet?region=eu-west-1")
