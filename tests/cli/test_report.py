from __future__ import annotations

import pytest


def test_a_report_of_several(call, packed, histogram, tmp_path):
    out, pictures = tmp_path / "both.html", tmp_path / "pictures"
    pictures.mkdir()
    ran = call("report", packed, histogram, packed, "-o", out, "--png", pictures, "--throughput", 20000)
    assert (ran.code, ran.err) == (0, "")
    assert f"saved {out}, " in ran
    assert f"saved 10 pictures in {pictures}" in ran  # named twice, shown once
    assert "at 20,000 slots per second" in out.read_text()
    assert len(list(pictures.iterdir())) == 10


def test_the_default_place(call, packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("report", packed).code == 0
    assert (tmp_path / "report.html").stat().st_size < 1.5e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'PATH...'; see `nopad report --help`"),
        (["none.json"], "none.json: no such file or folder; give a histogram, a plan, or a packed dataset"),
        (["{histogram}", "-o", "no/such/a.html"], "there is no folder no/such; make it, or choose another"),
        (["{histogram}", "--png", "no/such"], "there is no folder no/such"),
        (["{histogram}", "--throughput", "0"], "throughput must be above 0 slots per second, got 0.0"),
    ],
)
def test_wrong_use(call, histogram, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ran = call("report", *(text.format(histogram=histogram) for text in arguments))
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()
    assert not (tmp_path / "report.html").exists()


def test_both_datasets_of_a_job_stand_side_by_side(call, mixed, tmp_path):
    ran = call("report", mixed, "-o", tmp_path / "r.html")
    assert ran.code == 0
    page = (tmp_path / "r.html").read_text()
    assert "mixed/train" in page
    assert "mixed/validation" in page
    assert "Tokens by source" in page
