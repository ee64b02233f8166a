"""Options of tasks that are booleans or texts: anything else is refused when the task is made, for every task."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.tasks.tiny import tokenizer

from nopad.errors import OptionError
from nopad.tasks.registry import options_of, tasks_by_name

NEEDED = {"labels": ["O", "B-X"]}
BOOLEANS, TEXTS = (
    [
        (name, option)
        for name, task in tasks_by_name().items()
        for option, parameter in options_of(task).items()
        if parameter.annotation in kinds
    ]
    for kinds in ((bool,), (str, str | None))
)


def made(name, **options):
    task = tasks_by_name()[name]
    needed = {
        one: value
        for one, value in NEEDED.items()
        if options_of(task).get(one, inspect.Parameter).default is inspect.Parameter.empty
    }
    return task(tokenizer(), **{**needed, **options})


def test_the_tasks_have_such_options():
    assert ("contrast", "symmetric") in BOOLEANS
    assert ("contrast", "negative") in TEXTS


@pytest.mark.parametrize(("name", "option"), BOOLEANS)
@pytest.mark.parametrize("value", ["no", "false", 0.0, None, []])
def test_what_is_no_boolean_is_refused(name, option, value):
    with pytest.raises(OptionError, match=f"{option} must be one of True, False, got"):
        made(name, **{option: value})


@pytest.mark.parametrize(("name", "option"), TEXTS)
@pytest.mark.parametrize("value", [["a", "b"], 3, True, b"text"])
def test_what_is_no_text_is_refused(name, option, value):
    with pytest.raises(OptionError, match=f"{option} is .*; it is a text"):
        made(name, **{option: value})


COLUMNS = [(name, option) for name, option in TEXTS if "prompt" not in option]


def test_the_tasks_know_their_columns():
    known = {(name, one) for name, task in tasks_by_name().items() for one in (*task.texts_by, *task.columns_by)}
    assert known == set(COLUMNS)  # every option that is a text, but for prompts


@pytest.mark.parametrize(("name", "option"), COLUMNS)
def test_a_column_without_a_name_is_refused(name, option):
    with pytest.raises(OptionError, match=f"^{option} is ''; give the name of a column, or leave it out"):
        made(name, **{option: ""})
