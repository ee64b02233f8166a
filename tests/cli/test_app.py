from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import typer

import nopad
from nopad.cli.app import _warned, app
from nopad.errors import StorageError

ANSI = "\x1b["
VERBS = ("demo", "plan", "pack", "verify", "report", "audit", "train", "study")


def test_version(run):
    ran = run("--version")
    assert (ran.code, ran, ran.err) == (0, f"nopad {nopad.__version__}\n", "")


def test_version_in_this_process(call):
    assert call("--version") == f"nopad {nopad.__version__}\n"


@pytest.mark.parametrize(
    ("filename", "package"),
    [
        ("/v/lib/python3.11/site-packages/transformers/training_args.py", "transformers"),
        ("/v/lib/python3.11/site-packages/six.py", "six"),
        ("/v/lib/python3.11/site-packages/nopad/store/job.py", "nopad"),
        ("/home/me/nopad/src/nopad/store/job.py", "nopad"),
        ("/home/me/site-packages", "nopad"),
    ],
)
def test_a_warning_names_the_package_that_it_is_from(capsys, filename, package):
    _warned("audit", FutureWarning("this is old,\nuse that"), FutureWarning, filename, 7)
    assert " ".join(capsys.readouterr().err.split()) == f"{package}: this is old, use that"


def test_without_arguments_it_shows_help_and_exits_2(call):
    ran = call()
    assert ran.code == 2
    assert "Usage: nopad" in ran
    assert ran.err == ""


def test_help_lists_verbs_and_exit_codes(call):
    ran = call("--help")
    assert ran.code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in ran
    text = " ".join(ran.split())
    assert "0 fine; 1 a check failed; 2 wrong use or bad input; 3 the disk is full" in text
    assert "--debug" in text


@pytest.mark.parametrize(
    ("verb", "examples"), [("plan", 12), ("pack", 8), ("verify", 4), ("report", 5), ("audit", 6), ("train", 5)]
)
def test_help_of_a_verb_shows_examples(call, verb, examples):
    ran = call(verb, "--help")
    assert ran.code == 0
    assert "Examples:" in ran
    assert ran.split("Arguments:")[0].count(f"nopad {verb} ") == examples + 1  # and the usage line


@pytest.mark.parametrize(
    ("verb", "extra"), [("report", "report"), ("audit", "torch"), ("predict", "torch"), ("train", "train")]
)
def test_help_names_the_extra_a_verb_needs(call, verb, extra):
    told = " ".join(call(verb, "--help").split())
    assert f"Needs the extra {extra}: in a clone, pip install -e '.[{extra}]'." in told


def test_an_empty_default_is_not_shown(call):
    assert 'What the price is in, such as "$" or EUR. --watts' in " ".join(call("report", "--help").split())


def test_help_of_demo_names_its_folder(call):
    assert "nopad-demo" in call("demo", "--help")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frob"], "No such command 'frob'; see `nopad --help`"),
        (["plan"], "Missing argument 'INPUT...'; see `nopad plan --help`"),
        (["plan", "h.json", "--qqqqqq"], "No such option: --qqqqqq; see `nopad plan --help`"),
        (["trian", "c.toml"], "No such command 'trian' (did you mean 'train'?); see `nopad --help`"),
        (["plan", "h.json", "--algoritm", "x"], "No such option: --algoritm (did you mean --algorithm?); see "),
        (["audit", "model", "extra"], "Got unexpected extra argument(s) (extra); see `nopad audit --help`"),
        (["plan", "h.json", "--over-long", "cut"], "'cut' is not one of 'error', 'truncate', 'split', 'drop'"),
        (["plan", "h.json", "--empty", "keep"], "'keep' is not one of 'skip', 'error'"),
        (["plan", "h.json", "--on-bad-record", "fix"], "'fix' is not one of 'error', 'skip'"),
        (["plan", "h.json", "--text-unit", "word"], "'word' is not one of 'file', 'line'"),
        (["pack", "h.json", "--order", "best", "-o", "x", "-c", "1"], "'best' is not one of 'random', 'source'"),
        (["plan", "h.json", "-c", "many"], "Invalid value for '--capacity' / '-c'"),
        (["pack", "h.json", "-c", "4"], "Missing option '--out' / '-o'; see `nopad pack --help`"),
        (["pack", "h.json", "-o", "x"], "Missing option '--capacity' / '-c'; see `nopad pack --help`"),
        (["verify"], "Missing argument 'PATH...'; see `nopad verify --help`"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(call, arguments, message):
    ran = call(*arguments)
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()
    assert "Value error" not in ran.err


def test_wrong_use_in_a_real_process(run):
    ran = run("plan", "missing.json")
    assert (ran.code, ran) == (2, "")
    assert ran.error() == "missing.json: no such file or folder; check the path"


@pytest.mark.parametrize("place", [0, 2])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(run, place):
    arguments = ["plan", "missing.json"]
    arguments.insert(place, "--debug")
    ran = run(*arguments)
    assert (ran.code, ran) == (2, "")
    assert ran.err.startswith("Traceback (most recent call last):")
    assert "SourceError: missing.json" in ran.err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (StorageError("the disk is full"), 3, "the disk is full"),
        (StorageError("two\nlines"), 3, "two lines"),
        (OSError(28, "No space left on device"), 3, "cannot read or write the output: No space left on device"),
        (PermissionError(13, "Permission denied", "a.txt"), 3, "cannot read or write a.txt: Permission denied"),
        (RuntimeError("oops"), 4, "RuntimeError: oops (a bug in nopad; --debug shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_goes_wrong_inside_has_its_exit_code(call, monkeypatch, histogram, error, code, line):
    def fail(path):
        raise error

    monkeypatch.setattr("nopad.cli.lengths.read_histogram", fail)
    if code == 3 and not isinstance(error, StorageError):
        monkeypatch.setattr("nopad.cli.app._discard_stdout", lambda: 0)  # pytest's stdout is no file
    ran = call("plan", histogram)
    assert (ran.code, ran.error()) == (code, line)
    assert "Traceback" in call("plan", histogram, "--debug").err


def test_messages_with_brackets_are_shown_as_they_are(call, tmp_path):
    ran = call("plan", tmp_path / "a[/b][bold].json")
    assert "a[/b][bold].json: no such file" in ran.error()


def test_piped_output_has_no_colour_codes(run, histogram, packed):
    for arguments in (["plan", histogram], ["verify", packed], ["--help"], ["plan", "missing.json"]):
        ran = run(*arguments)
        assert ANSI not in ran
        assert ANSI not in ran.err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_reader_that_leaves_early_is_no_error(command, histogram, as_json):
    with subprocess.Popen(
        command("plan", histogram, *as_json), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()  # `| head -0`
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


def test_head_gets_its_line(command, histogram):
    line = subprocess.run(
        ["sh", "-c", '"$@" | head -1', "sh", *command("plan", histogram)], capture_output=True, text=True, timeout=60
    )
    assert line.stdout.startswith("5 sequences of 2 to 8 tokens")
    assert (line.stdout.count("\n"), line.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_full_disk_behind_stdout_is_exit_code_3(command, histogram, as_json):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("plan", histogram, *as_json), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (
        3,
        "nopad: cannot read or write the output: No space left on device\n",
    )


def test_a_closed_stdout_is_no_error(command, histogram):
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command("plan", histogram, "--json")], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_interrupting_a_plan_says_so_and_exits_130(command, tmp_path, words):
    path = tmp_path / "big.jsonl"
    path.write_text(('{"text": "' + "w1 w2 w3 " * 40 + '"}\n') * 100_000)
    with subprocess.Popen(
        command("plan", path, "-c", 512, "-t", words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        # Until it reads the corpus: before, Python itself may be interrupted while it imports.
        deadline = time.monotonic() + 60
        while str(path) not in open_files(process.pid) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "nopad: interrupted\n")


@pytest.mark.parametrize("into_reading", [0, 1.5])
def test_an_interrupted_job_ends_at_once(command, tmp_path, words, into_reading):
    path, out = tmp_path / "big.jsonl", tmp_path / "out"
    path.write_text(('{"text": "' + "w1 w2 w3 " * 400_000 + '"}\n') * 10)  # a record takes seconds to tokenise
    with subprocess.Popen(
        command("pack", path, "-o", out, "-c", 2048, "-t", words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60
        while str(path) not in open_files(process.pid) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(into_reading)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        took = time.monotonic() - begin
    assert process.returncode == 130, err
    assert err.count(b"\n") == 1
    assert took < 2  # 0.1 s on a machine that does nothing else


@pytest.mark.parametrize("arguments", [["-h"], ["pack", "-h"], ["study", "-h"], ["study", "packing", "-h"]])
def test_short_help(call, arguments):
    ran = call(*arguments)
    assert (ran.code, ran) == (0, call(*arguments[:-1], "--help"))
    assert "-h, --help" in ran


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_fits_the_terminal(call, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    widths = set()
    for verb in VERBS:
        ran = call(verb, "-h")
        widths.add(max(map(len, ran.splitlines())))
        assert all(len(line) <= max(columns, 80) or line.startswith("  nopad ") for line in ran.splitlines())
        assert "…" not in ran
    assert max(widths) > min(columns, 100) - 20  # it was heard


def test_help_says_what_an_option_takes(call):
    lines = call("pack", "-h").splitlines()
    at = next(i for i, line in enumerate(lines) if "--over-long error|truncate|split|drop" in line)
    text = " ".join(line.strip() for line in lines[at + 1 : at + 3])
    assert text == "What happens to records above the capacity. Default: error."
    assert any(line.startswith("  -c, --capacity N") and line.endswith("Required.") for line in lines)
    assert "[CLS] A [SEP] B [SEP]" in " ".join(call("pack", "-h").split())


def test_completion_of_a_shell(run):
    line = {"_NOPAD_COMPLETE": "complete_bash", "COMP_WORDS": "nopad pack --over", "COMP_CWORD": "2"}
    assert run(**line).split() == ["--over-long"]


def open_files(pid: int) -> set[str]:
    """What a process has open now; a file it closes while we look is left out."""
    folder, found = f"/proc/{pid}/fd", set()
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(os.path.join(folder, number)))
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_the_documentation_has_every_option(verb):
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    command = typer.main.get_command(app).commands[verb]
    for name, inner in getattr(command, "commands", {verb: command}).items():
        assert f"`nopad {verb}" in page
        assert verb == name or f"`nopad {verb} {name} " in page
        for parameter in inner.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert not option.startswith("-") or f"`{option}" in page, option
