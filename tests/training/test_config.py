"""The configuration of a run: every field has a type, what is unknown is refused by file and name, TOML and back."""

from __future__ import annotations

import tomllib

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from nopad.errors import OptionError, SourceError
from nopad.training.config import read_config
from nopad.training.tables import TaskTable
from nopad.training.toml import to_toml

SMALLEST = """
[model]
name = "m"
[data]
train = "a.jsonl"
[output]
folder = "out"
"""


@pytest.fixture
def read(tmp_path):
    def read(text="", *changes, **options):
        path = tmp_path / "c.toml"
        path.write_text(SMALLEST + text)
        return read_config(path, changes, **options)

    return read


def test_the_smallest(read):
    made = read()
    assert (made.model.name, made.model.dtype, made.data.train, made.output.folder) == (
        "m",
        "float32",
        ("a.jsonl",),
        "out",
    )
    assert (made.packing.rows, made.packing.last, made.task, dict(made.trainer)) == (None, "short", TaskTable(), {})
    assert made.document() == {
        "model": {"name": "m"},
        "data": {"train": ("a.jsonl",)},
        "output": {"folder": "out"},
    }


def test_fields_have_the_types_of_what_they_are_for(read):
    made = read(
        """
        [task]
        name = "classify"
        labels = ["a", "b"]
        max_length = 32
        [packing]
        capacity = 64
        depth = "none"
        options = { effort = 1 }
        [trainer]
        learning_rate = 1
        lr_scheduler_type = "cosine"
        lr_scheduler_kwargs = { num_cycles = 2 }
        report_to = ["tensorboard"]
        """
    )
    assert dict(made.task.options) == {"labels": ["a", "b"], "max_length": 32}
    assert type(made.trainer["learning_rate"]) is float
    assert made.packing.depth is None
    assert made.packing.plan_options() == {"effort": 1}


def test_changes_are_toml_or_texts(read):
    made = read(
        '[task]\nname = "classify"\n[trainer]\nseed = 1',
        "trainer.learning_rate=3e-5",
        "trainer.run_name=5",
        "trainer.bf16=true",
        "data.train=['x.jsonl', 'y.jsonl']",
        "data.eval=z.jsonl",
        "task.labels=['a', 'b=c']",
        "model.config.hidden_dropout_prob=0.0",
        "model.config.note=a.b",
        "model.config.deep=5",
        "model.config.deep.er=5",
        "model.config.deep.er.est=6",
        init_from="other",
    )
    assert made.trainer == {"seed": 1, "learning_rate": 3e-5, "run_name": "5", "bf16": True}
    assert made.data.train == ("x.jsonl", "y.jsonl")
    assert made.data.eval == ("z.jsonl",)
    assert made.task.options["labels"] == ["a", "b=c"]
    assert made.model.config == {"hidden_dropout_prob": 0.0, "note": "a.b", "deep": {"er": {"est": 6}}}
    assert made.model.init_from == "other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainer]\nlerning_rate = 1", "{file}: [trainer] has no 'lerning_rate'; did you mean learning_rate?"),
        ("[trainer]\nlearning_rate = 'x'", "{file}: trainer.learning_rate is 'x', and must be a number"),
        ("[trainer]\nbf16 = 1", "{file}: trainer.bf16 is 1, and must be true or false"),
        ("[trainer]\nseed = 1.0", "{file}: trainer.seed is 1.0, and must be an integer"),
        ("[trainer]\nseed = true", "{file}: trainer.seed is True, and must be an integer"),
        ("[trainer]\nsave_strategy = 'x'", "trainer.save_strategy is 'x', and must be one of 'no', 'steps', 'epoch'"),
        ("[trainer]\noutput_dir = 'x'", "trainer.output_dir: leave it out; output.folder says where to"),
        ("[trainer]\ngradient_accumulation_steps = 2", "leave it out; packing.accumulation says it"),
        ("[trainr]\nseed = 1", "{file}: the configuration has no 'trainr'; did you mean trainer?"),
        ("[packing]\ncapcity = 1", "{file}: [packing] has no 'capcity'; did you mean capacity?"),
        ("[packing]\nlast = 'pad'", "packing.last is 'pad', and must be 'drop' or 'fill' or 'short' or 'refuse'"),
        ("[packing]\nrows = 0", "packing.rows is 0, and must be at least 1"),
        ("[packing]\nrows = 1\ntokens = 5", "packing.rows and packing.tokens both say what a micro-step is"),
        ("[packing]\nalgorithm = 'optmal'", "unknown algorithm 'optmal'; did you mean optimal?"),
        ("[packing]\noptions = { efort = 1 }", "effort"),
        ("[task]\nname = 'clasify'", "there is no task 'clasify'; there are answer, "),
        ("[task]\nname = 'classify'\nlabel_names = 1", "[task] has no 'label_names'; did you mean labels?"),
        ("[task]\nname = 'classify'\nmax_length = 'x'", "task.max_length is 'x', and must be an integer or none"),
        ("[task]\nname = 'classify'\nover_long = 'x'", "task.over_long is 'x'"),
        ("[task]\nlabels = 2", "{file}: task.name is missing, and labels would be an option of it"),
        ("[x", "{file} is no TOML: "),
        (f"[packing]\ncapacity = {'1' * 5000}", "{file} is no TOML: Exceeds the limit"),
    ],
)
def test_what_is_wrong_is_named(read, tmp_path, text, message):
    with pytest.raises(OptionError) as found:
        read(text)
    assert message.format(file=tmp_path / "c.toml") in str(found.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trainer.lerning_rate=1", "--set trainer.lerning_rate=1: [trainer] has no 'lerning_rate'; did you mean"),
        (
            "trainer.learning_rate=.5",
            "--set trainer.learning_rate=.5: trainer.learning_rate is '.5', and must be a number",
        ),
        (f"trainer.learning_rate=1{'0' * 400}", "and must be a number"),
        (f"packing.capacity=1{'0' * 5000}", "0', and must be an integer"),
        ("trainer.bf16=True", "trainer.bf16 is 'True', and must be true or false"),
        ("seed=1", "it must be TABLE.FIELD=VALUE"),
        ("trainer.seed", "it must be TABLE.FIELD=VALUE"),
        ("trainer..seed=1", "it must be TABLE.FIELD=VALUE"),
        ("trainer.seed=1\nbf16=true", "trainer.seed is '1\\nbf16=true', and must be an integer"),
        ("trainer.seed.x=1", "trainer.seed is {'x': 1}, and must be an integer"),
        ("task.labels=2", "task.name is missing"),
        ("task.name=nothing", "there is no task 'nothing'"),
    ],
)
def test_what_is_wrong_on_the_command_line(read, change, message):
    with pytest.raises(OptionError) as found:
        read("", change)
    assert message in str(found.value)


def test_options_of_a_task_that_is_changed(read):
    text = '[task]\nname = "classify"\nlabels = ["a", "b"]'
    with pytest.raises(OptionError, match=r"c.toml: \[task\] has no 'labels'"):
        read(text, "task.name=regress")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("data = 1", "data is 1, and must be a table: [data]"),
        ('[model]\n[data]\ntrain = "a"\n[output]\nfolder = "o"', "model.name is missing"),
        ('[model]\nname = "m"\n[output]\nfolder = "o"', "data.train is missing"),
        ('[model]\nname = "m"\n[data]\ntrain = "a"', "output.folder is missing"),
        ('[model]\nname = "m"\n[data]\ntrain = [""]\n[output]\nfolder = "o"', "data.train has an empty name"),
        ('[model]\nname = "m"\n[data]\ntrain = "a"\neval = "b"\nheld_out = 0.1\n[output]\nfolder = "o"', "two ways"),
        ('[model]\nname = "m"\n[data]\ntrain = "a"\nheld_out = 1\n[output]\nfolder = "o"', "data.held_out is 1"),
        ('[model]\nname = "m"\n[data]\ntrain = "a"\nheld_out = false\n[output]\nfolder = "o"', "data.held_out is"),
        (
            '[model]\nname = "m"\n[data]\ntrain = "a"\n[output]\nfolder = "s3://o"',
            "written to a folder of this machine",
        ),
        ('[model]\ninit_from = "m"\nfresh = true\n[data]\ntrain = "a"\n[output]\nfolder = "o"', "model.fresh means"),
    ],
)
def test_what_is_missing(tmp_path, lines, message):
    path = tmp_path / "c.toml"
    path.write_text(lines)
    with pytest.raises(OptionError) as found:
        read_config(path)
    assert str(found.value).startswith(f"{path}: ")
    assert message in str(found.value)


def test_no_file(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(SourceError, match="no such file"):
        read_config(tmp_path)


def test_a_configuration_is_written_as_it_is_read(read, tmp_path):
    made = read(
        """
        [task]
        name = "classify"
        labels = ["a \\"b\\"", "ü\\n", "\\u007f"]
        [packing]
        capacity = 64
        [trainer]
        learning_rate = 1e-9
        weight_decay = 0.1
        bf16 = false
        lr_scheduler_kwargs = { "a b" = [1, 2.5], c = { d = "e" } }
        """
    )
    path = tmp_path / "again.toml"
    path.write_text(to_toml(made.document()))
    assert read_config(path) == made
    assert tomllib.loads(path.read_text())["task"]["labels"] == ['a "b"', "ü\n", "\x7f"]
