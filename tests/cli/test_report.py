from __future__ import annotations

import pytest


def test_a_report_of_several(call, packed, histogram, tmp_path):
    out, pictures = tmp_path / "both.html", tmp_path / "pictures"
    given = ("--tokens-per-second", 20000, "--price-per-hour", 3, "--currency", "EUR", "--watts", 400, "--gpus", 2)
    more = ("--title", "Ours & theirs", "--batch-size", 16, "--rows-per-step", 8)
    ran = call("report", packed, histogram, packed, "-o", out, "--png", pictures, *given, *more)
    assert (ran.code, ran.err) == (0, "")
    assert f"saved {out}, " in ran
    slides = list(pictures.glob("*-slide.png"))
    assert len(slides) == 2  # named twice, shown once
    assert f"saved {len(list(pictures.iterdir()))} pictures in {pictures}" in ran
    page = out.read_text()
    for part in (
        "slots ÷ 20,000 per second",
        "3.00 EUR per GPU-hour",
        "400 W",
        "2 GPUs",
        "<h1>Ours &amp; theirs</h1>",
        "batches of 16",
        "8 rows per step",
    ):
        assert part in page
    assert "An epoch takes " in ran
    assert "An epoch would take " in ran


def test_a_picture(call, packed, tmp_path):
    ran = call("report", packed, "-o", tmp_path / "r.png", "--title", "Ours")
    assert (ran.code, ran.err) == (0, "")
    assert "a picture of 1920 x 1080 pixels" in ran
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


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
        (["{histogram}", "--png", "no/such"], "there is no folder no; make it, or choose another"),
        (["{histogram}", "--png", "{histogram}"], "is a file; give a folder"),
        (
            ["{ids}"],
            "a report is about a histogram or plan (.json), or a packed dataset; pack it first, or plan it",
        ),
        (["{histogram}", "--tokens-per-second", "0"], "--tokens-per-second must be a number above 0"),
        (["{histogram}", "--watts", "700"], "--watts needs --tokens-per-second: what one GPU computes"),
        (["{histogram}", "--batch-size", "0"], "--batch-size must be an integer from 1 to 1048576, got 0"),
        (["{histogram}", "-o", "a.pdf"], "a.pdf: a report is saved as .html or .png"),
    ],
)
def test_wrong_use(call, histogram, ids, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ran = call("report", *(text.format(histogram=histogram, ids=ids) for text in arguments))
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
