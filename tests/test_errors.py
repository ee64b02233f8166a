from __future__ import annotations

import inspect
import re

import pytest

from nopad import errors

CLASSES = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


def drawn():
    """The tree of the module docstring: name -> (parent, exit code or None)."""
    path, found = [], {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\b", line)
        if not match or (found and not match[1]):
            continue
        del path[len(match[1]) // 4 :]
        code = re.search(r"exit (\d+)$", line)
        found[match[2]] = (path[-1] if path else None, int(code[1]) if code else None)
        path.append(match[2])
    return found


def test_the_drawing_holds_every_class_and_no_other():
    assert list(CLASSES) == list(drawn())  # in the drawn order, too
    assert sorted(CLASSES) == errors.__all__


@pytest.mark.parametrize(("name", "parent", "code"), [(name, *rest) for name, rest in drawn().items()])
def test_the_drawing_is_true(name, parent, code):
    error = CLASSES[name]
    assert error.__bases__[0] is (CLASSES[parent] if parent else Exception)
    if code is not None:
        assert error.exit_code == code
    elif parent:  # not drawn: as above it
        assert "exit_code" not in vars(error)
    assert error.__doc__


def test_every_branch_below_the_root_states_its_exit_code():
    assert all(code is not None for parent, code in drawn().values() if parent == "NopadError")


def test_exit_codes():
    codes = {name: error.exit_code for name, error in CLASSES.items()}
    assert {name: code for name, code in codes.items() if code != 2} == {
        "StorageError": 3,
        "CorruptError": 1,
        "DeviceMemoryError": 1,
        "LossError": 1,
        "DeadlineError": 1,
        "QueueFullError": 1,
        "RequestError": 1,
        "RunnerClosedError": 1,
        "ServingError": 1,
        "TrainingError": 1,
        "InterruptedJobError": 130,
    }


def test_also_builtin_errors():
    also = {name: error.__bases__[1:] for name, error in CLASSES.items() if error.__bases__[1:]}
    assert also == {
        "InputError": (ValueError,),
        "MissingExtraError": (ImportError,),
        "NotPackSafeError": (AttributeError, TypeError),
    }
    assert issubclass(errors.OptionError, ValueError)
