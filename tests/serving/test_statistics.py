"""What `print(runner.statistics)` shows."""

from dataclasses import replace

from nopad.serving.packer import PackerStatistics
from nopad.serving.statistics import RunnerStatistics


def test_statistics_print_as_a_table():
    packer = PackerStatistics(
        arrived=9,
        packed=7,
        cancelled=1,
        expired=0,
        refused=2,
        waiting=1,
        waiting_tokens=12,
        flushes={"full": 2, "idle": 1, "deadline": 0},
        tokens=750,
        slots=750,
    )
    made = RunnerStatistics(
        packer=packer,
        answered=6,
        failed=1,
        late=4,
        filler_tokens=40,
        padded_tokens=1000,
        counts={"truncated": 3},
        us_per_token=2.5,
        p50_ms=10.04,
        p99_ms=1234.5,
    )
    assert str(made).splitlines() == [
        "requests  6 answered, 1 failed, 2 refused (full), 4 refused (too late), 3 truncated",
        "sequences 1 cancelled",
        "waiting   1 sequence, 12 tokens",
        "batches   3 batches: 2 full, 1 idle",
        "padding   25.0% saved: 750 tokens instead of 1,000",
        "filler    40 slots beyond the tokens of batches, 5.1% of all",
        "answer    half within 10.0 ms, 99 % within 1,234.5 ms",
        "token     2.50 µs",
    ]
    rows = replace(made, packer=replace(packer, slots=800))
    assert str(rows).splitlines()[4:6] == [
        "padding   25.0% saved: 750 tokens instead of 1,000",
        "slots     800 computed, 6.2% of them empty",
    ]
    idle = replace(packer, cancelled=0, refused=0, waiting=0, waiting_tokens=0, flushes={}, tokens=0, slots=0)
    new = RunnerStatistics(
        packer=idle,
        answered=0,
        failed=0,
        late=0,
        filler_tokens=0,
        padded_tokens=0,
        counts={},
        us_per_token=None,
        p50_ms=None,
        p99_ms=None,
    )
    assert str(new) == "requests  0 answered\nwaiting   0 sequences, 0 tokens"
