from __future__ import annotations

import dataclasses
import re
import shutil

import pytest

import nopad
from nopad.errors import MissingExtraError, OptionError
from nopad.report import read_subject, write_pictures, write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def page(subjects, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(subjects, path, throughput=50_000)
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
        assert f"{subject.hours_saved(50_000):,.2f}" in text
    assert "at 50,000 slots per second" in text
    assert "records skipped as empty" in text
    assert "nopad pack INPUT -o packed --capacity 16" in text


def test_pictures(subjects, tmp_path):
    files = write_pictures(subjects, tmp_path)
    assert len(files) == 21
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files)


def test_nothing_to_report_on(tmp_path):
    with pytest.raises(OptionError, match="nothing to report on"):
        write_report([], tmp_path / "a.html")


@pytest.mark.parametrize("throughput", [0, -1, float("nan")])
def test_a_throughput_that_is_none(subjects, tmp_path, throughput):
    with pytest.raises(OptionError, match="throughput must be above 0"):
        write_report(subjects, tmp_path / "a.html", throughput=throughput)


def test_without_the_extra(subjects, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nopad\[report\]'"):
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
    @pytest.fixture(params=["light", "dark"])
    def opened(self, browser, page, request):
        """The page with the network off, drawn; everything it says on the console, every request."""
        context = browser.new_context(viewport={"width": 1100, "height": 900}, offline=True, color_scheme=request.param)
        tab = context.new_page()
        tab.said, tab.asked = [], []
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.on("request", lambda asked: tab.asked.append(asked.url))
        tab.goto(page.as_uri())
        tab.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
        yield tab
        context.close()

    def test_it_draws_everything_and_says_nothing(self, opened, page):
        assert opened.said == []
        assert opened.asked == [page.as_uri()]
        assert opened.locator(".chart svg").count() == 21
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
    write_report([subject], tmp_path / "report.html", throughput=1000)
    text = (tmp_path / "report.html").read_text()
    assert f'<p class="soft">{note}</p>' in text
    for name in ("auto", "lpfhp", "spfhp"):
        assert f'<p class="soft">{name}, depth 8: a &lt;hint&gt;</p>' in text
