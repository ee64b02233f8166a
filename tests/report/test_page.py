from __future__ import annotations

import dataclasses
import re
import shutil

import pytest

import nopad
from nopad.errors import MissingExtraError, OptionError
from nopad.report import read_subject, write_pictures, write_report
from nopad.report.charts import charts_of
from nopad.report.settings import Settings

GIVEN = Settings(
    title="What we <save>",
    batch_size=4,
    rows_per_step=6,
    tokens_per_second=0.5,
    price_per_hour=2.5,
    currency="$",
    watts=700,
    gpus=8,
)
USUAL = {"width": 1100, "height": 900}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def page(subjects, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(subjects, path, GIVEN)
    return path


def test_it_is_one_light_file_that_asks_for_nothing(page):
    text = page.read_text()
    assert len(text) < 1.5e6
    body = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(src|href)=\"(?!data:)", body)
    assert "@import" not in text
    assert "url(" not in re.search(r"<style>(.*?)</style>", text, re.S).group(1)
    assert not list(page.parent.glob("*.partial"))


def test_names_cannot_break_out(page):
    text = page.read_text()
    assert "some &lt;lengths&gt;" in text
    assert "some <lengths>" not in text


def test_it_says_what_matters(page, subjects):
    text = page.read_text()
    for subject in subjects:
        assert f"{subject.padding_before:.1%}" in text
        assert f"{subject.padding_after:.2%}" in text
        assert subject.answer in text
        hours = (subject.plan.sequences - subject.plan.packs) * subject.plan.capacity / 0.5 / 3600
        assert f"An epoch saves {hours:.3g} GPU-hours, ${hours * 2.5:,.2f} and {hours * 0.7:.3g} kWh against" in text
        assert f"<b>{-(-subject.plan.packs // 6):,}</b> <small>of {-(-subject.plan.sequences // 6):,}</small>" in text
    assert "GPU-hours = slots ÷ 0.5 per second and GPU" in text
    assert "<h1>What we &lt;save&gt;</h1>" in text
    assert "<title>What we &lt;save&gt;</title>" in text
    assert "records skipped as empty" in text
    assert (
        "<pre><span>nopad</span> <span>pack</span> <span>INPUT</span> <span>--out</span> <span>packed</span> " in text
    )
    commands = [re.sub("<.*?>", "", one) for one in re.findall("<pre>(.*?)</pre>", text)]  # as they are copied
    assert any(one.startswith("nopad pack INPUT --out packed --capacity 16") for one in commands)


def test_pictures(subjects, tmp_path):
    files = write_pictures(subjects, tmp_path)
    assert len(files) == sum(len(charts_of(subject)) for subject in subjects) + 2 * len(subjects)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


def test_pictures_of_subjects_with_the_same_name(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        nopad.plan([4] * 9, 8).save(tmp_path / folder / "same.plan.json")
    subjects = [read_subject(tmp_path / folder / "same.plan.json") for folder in ("a", "b")]
    files = write_pictures(subjects, tmp_path)
    assert sorted(files) == sorted(tmp_path.glob("*.png"))
    assert {"same-slide.png", "same-2-slide.png"} < {path.name for path in files}


def test_one_picture_for_a_slide(subjects, tmp_path):
    for number, subject in enumerate(subjects):
        write_report([subject], tmp_path / f"{number}.png", GIVEN if number % 2 else None)
        header = (tmp_path / f"{number}.png").read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n"
        assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:])) == (1920, 1080)
    with pytest.raises(
        OptionError, match=r"a\.png would be a picture of 4 subjects; a picture shows one, a page several"
    ):
        write_report(subjects, tmp_path / "a.png")


def test_a_slide_of_equal_lengths(tmp_path):
    nopad.plan([4] * 9, 8).save(tmp_path / "equal.plan.json")
    write_report([read_subject(tmp_path / "equal.plan.json")], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_what_is_not_given_is_not_on_the_page(subjects, tmp_path):
    write_report(subjects[2:3], tmp_path / "a.html")
    body = (tmp_path / "a.html").read_text().partition("<body>")[2].partition("<script")[0]
    assert "<h1>Packing report: packed</h1>" in body
    for word in ("GPU", "kWh", "cost<", "steps", "supervised"):
        assert word not in body


def test_supervised_tokens_are_on_the_page(tmp_path):
    rows = [{"input_ids": [1] * n, "labels": [-100] * (n - 1) + [5]} for n in (4, 3, 1)]
    nopad.pack_corpus(nopad.open_source(rows), tmp_path / "chats", nopad.CorpusOptions(capacity=8))
    write_report([read_subject(tmp_path / "chats")], tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "<dt>supervised tokens</dt><dd><b>37.5%</b>" in text
    assert "Supervised tokens: 3 of 8 (labels other than -100), counted as they are stored." in text


def test_every_picture_says_in_words_what_it_shows(page):
    body = page.read_text().partition("<body>")[2].partition("<script")[0]
    bars = re.findall(r'<div class="bar"[^>]*>', body)
    assert len(bars) == 16
    assert all('role="img" aria-label="' in bar for bar in bars)


def test_nothing_to_report_on(tmp_path):
    with pytest.raises(OptionError, match="nothing to report on"):
        write_report([], tmp_path / "a.html")


def test_without_the_extra(subjects, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match=r"in a clone: pip install -e '\.\[report\]'"):
        write_report(subjects, tmp_path / "a.html")


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser was found (looked for {', '.join(BROWSERS)}): install Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestInChromium:
    @pytest.fixture(params=["light", "dark"], scope="class")
    def drawn(self, browser, page, request):
        """The page with the network off, drawn; everything it says on the console, every request."""
        context = browser.new_context(viewport=USUAL, offline=True, color_scheme=request.param)
        tab = context.new_page()
        tab.said, tab.asked = [], []
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.on("request", lambda asked: tab.asked.append(asked.url))
        tab.goto(page.as_uri())
        tab.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
        yield tab
        context.close()

    @pytest.fixture
    def opened(self, drawn):
        """The same, on a screen of the usual size, from its top, with the mouse nowhere."""
        drawn.emulate_media(media="screen")
        drawn.mouse.move(0, 0)
        if drawn.viewport_size != USUAL:
            drawn.set_viewport_size(USUAL)
            drawn.wait_for_timeout(400)
        drawn.evaluate("scrollTo(0, 0); document.querySelectorAll('.scroll').forEach(e => e.scrollTo(0, 0))")
        return drawn

    def test_it_draws_everything_and_says_nothing(self, opened, page, subjects):
        assert opened.said == []
        assert opened.asked == [page.as_uri()]
        assert opened.locator(".chart svg").count() == sum(len(charts_of(subject)) for subject in subjects)
        paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert paper == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")

    def test_hover_shows_a_sequence(self, opened, subjects):
        opened.locator("#packs-2 svg .mark-rect path").first.hover()
        tip = opened.locator("#vg-tooltip-element.visible")
        tip.wait_for()
        length, record = subjects[2].packs[0][0]
        assert f"{length} tokens, {record}" in tip.inner_text()

    def test_packs_scroll(self, opened):
        scroll = opened.locator(".scroll").first
        height, shown = scroll.evaluate("e => [e.scrollHeight, e.clientHeight]")
        assert height > shown
        scroll.hover()
        opened.mouse.wheel(0, 200)
        opened.wait_for_function("document.querySelector('.scroll').scrollTop > 100")

    @pytest.mark.parametrize("width", [360, 800, 1600])
    def test_nothing_is_wider_than_the_screen(self, opened, width):
        opened.set_viewport_size({"width": width, "height": 800})
        opened.wait_for_timeout(400)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        widest = opened.evaluate(
            "Math.max(...[...document.querySelectorAll('.chart svg')].map(e => e.getBoundingClientRect().right))"
        )
        assert widest <= width

    def test_several_are_stacked_on_a_phone(self, opened, subjects):
        opened.set_viewport_size({"width": 360, "height": 800})
        shown = opened.locator(".several").inner_text()
        assert all(subject.name in shown for subject in subjects)
        assert opened.locator(".several tr").first.is_hidden()  # what it says stands above each value instead
        cells = opened.evaluate(
            "[...document.querySelectorAll('.several tr:nth-child(2) td')].map("
            "e => [getComputedStyle(e, '::before').content, e.getBoundingClientRect().right])"
        )
        told = "sequences, capacity, packs, padding before, padding after, factor, above the proven minimum"
        assert [label for label, _ in cells[1:]] == [f'"{what}"' for what in told.split(", ")]
        assert max(right for _, right in cells) <= 360

    def test_it_prints_light(self, opened):
        opened.emulate_media(media="print")
        assert opened.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert opened.pdf().startswith(b"%PDF")
        assert opened.said == []


def test_notes_of_the_plan_and_of_those_compared_are_on_the_page(tmp_path):
    made = nopad.plan(nopad.Histogram.from_counts({2: 28, 3: 48, 4: 55, 5: 40}), 9, depth=3, effort=0)
    [note] = made.notes
    made.save(tmp_path / "quick.plan.json")
    subject = read_subject(tmp_path / "quick.plan.json")
    assert subject.notes == (note,)
    compared = [{**row, "notes": ["a <hint>"] if row["depth"] == 8 else []} for row in subject.comparison]
    subject = dataclasses.replace(subject, comparison=compared)
    write_report([subject], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert f"<li>{note}</li>" in text
    for name in ("auto", "lpfhp", "spfhp"):
        assert f'<p class="soft">{name}, depth 8: a &lt;hint&gt;</p>' in text
