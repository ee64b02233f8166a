from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from rich.console import Console
from rich.progress import Progress

from nopad.cli.monitor import Bars, _Rate, _Share

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


def in_terminal(command, *, columns=100, stdout_too=False, **environment):
    """Run with stderr on a terminal, and stdout in a pipe unless `stdout_too`; return (code, stdout, terminal)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout_too else subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color"} | environment,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # Linux's end of file of a terminal
                break
            if not chunk:
                break
            shown += chunk
        out = b"" if stdout_too else process.stdout.read()
    os.close(ours)
    return process.returncode, out.decode(), shown.decode()


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "w1 w2 w3"}\n' * 20_000)
    return path


def test_progress_is_drawn_on_stderr_and_never_on_stdout(command, texts, words, tmp_path):
    code, out, shown = in_terminal(command("pack", texts, "-o", tmp_path / "out", "-c", 64, "-t", words))
    assert code == 0
    assert "\x1b" not in out
    assert "records: 20,000 records" in out
    assert "tokenising" in shown
    assert "records" not in shown


def test_no_progress_without_a_terminal(run, texts, words, tmp_path):
    ran = run("pack", texts, "-o", tmp_path / "out", "-c", 64, "-t", words)
    assert (ran.code, ran.err) == (0, "")


def test_json_stays_json_beside_the_progress(command, texts, words):
    code, out, _ = in_terminal(command("plan", texts, "-c", 64, "-t", words, "--json"))
    assert (code, out[0], out[-2:]) == (0, "{", "}\n")


def test_colours_in_a_terminal_and_none_with_no_color(command, histogram):
    _, _, shown = in_terminal(command("plan", histogram), stdout_too=True)
    assert COLOUR.search(shown)
    _, _, shown = in_terminal(command("plan", histogram), stdout_too=True, NO_COLOR="1")
    assert not COLOUR.search(shown)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(command, histogram, columns):
    code, _, shown = in_terminal(command("plan", histogram, "--all"), stdout_too=True, columns=columns, NO_COLOR="1")
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in shown.splitlines()]
    assert code == 0
    assert all(len(line) <= columns for line in lines)
    assert "…" not in shown
    [row] = [line.split() for line in lines if re.match(r" lpfhp +max ", line)]
    assert row[2 : 5 if columns == 120 else 4] == (["2", "3", "3"] if columns == 120 else ["3", "0"])


def test_rate_and_share():
    progress = Progress(console=Console(file=io.StringIO()))
    progress.add_task("x", total=200, completed=50, tokens=0)
    [task] = progress.tasks
    assert _Share().render(task).plain == " 25 %"
    assert _Rate().render(task).plain == ""
    task.start_time = 0.0
    for tokens, shown in ((2_500_000, "2.5 M tokens/s"), (4_000, "4 k tokens/s")):
        task.fields["tokens"] = tokens
        task.stop_time = 1.0
        assert _Rate().render(task).plain == shown
    task.total = None
    assert _Share().render(task).plain == ""


def test_bars_count_and_clear(capsys):
    with Bars() as bars:
        bars.advance(1)  # before any stage: nothing to move
        bars.stage("one", 10, "bytes")
        bars.advance(4, 100)
        bars.advance(2, 50)
        [task] = bars._progress.tasks
        assert (task.description, task.completed, task.fields["tokens"]) == ("one", 6, 150)
        bars.stage("two", None, "")
        [task] = bars._progress.tasks
        assert (task.description, task.completed, task.total) == ("two", 0, None)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_lines_come_at_growing_times(capsys):
    now = 0.0
    with Bars(lambda: now) as bars:
        bars.stage("tokenising", 200, "records")
        for now in (1.0, 9.9, 10.0, 19.0, 25.0, 39.0):  # noqa: B007
            bars.advance(20, 1000)
        bars.stage("planning", None, "plans")
        now = 100.0
        bars.advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "nopad: tokenising 30%, 3,000 tokens after 10 s",
        "nopad: tokenising 50%, 5,000 tokens after 25 s",
        "nopad: planning after 100 s",
    ]
