"""`RunFolder` and checkpoints with files that hold something else than they should: refused or passed over, no bug."""

from __future__ import annotations

import json
import zipfile
from types import SimpleNamespace

import pytest

from nopad.errors import FormatError, ResumeError
from nopad.training.checkpoint import steps_of, trainer_state
from nopad.training.folder import (
    CONFIG_FILE,
    METRICS_FILE,
    RUN_FILE,
    RunFolder,
    kept_lines,
    last_checkpoint,
    last_weights,
)

DEEP = "[" * 100_000


def checkpoint(folder, step=4, *, loader='{"legs": [{"world_size": 1}]}', state='{"global_step": 4, "max_steps": 9}'):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "trainer_state.json").write_text(state)
    (path / "nopad_loader.json").write_text(loader)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data", "x")
    return path


def test_a_whole_checkpoint_is_found(tmp_path):
    path = checkpoint(tmp_path)
    assert last_checkpoint(tmp_path) == last_weights(tmp_path) == path


@pytest.mark.parametrize(
    "loader",
    [
        *("3", '"x"', "true", "[]", '[{"rank": 0}]', '{"legs": 3}', '{"legs": [3]}', '{"legs": [{}]}', DEEP),
        *('{"legs": {"a": 1}}', '{"legs": [{"world_size": "2"}]}', '{"legs": [{"world_size": null}]}'),
        *('{"legs": [{"world_size": 0}]}', '{"legs": [{"world_size": 1000000000000}]}'),
    ],
)
def test_a_checkpoint_without_a_state_of_the_loader_is_not_whole(tmp_path, loader):
    whole = checkpoint(tmp_path, 2)
    checkpoint(tmp_path, 4, loader=loader)
    assert last_checkpoint(tmp_path) == whole


@pytest.mark.parametrize("name", ["global_step", "max_steps"])
@pytest.mark.parametrize("value", ["4", None, 4.5, True, [4]])
def test_numbers_of_steps_are_integers(tmp_path, name, value):
    path = checkpoint(tmp_path, state=json.dumps({"global_step": 4, "max_steps": 9, name: value}))
    for read in (trainer_state, steps_of):
        with pytest.raises(FormatError, match=rf"has .* as {name}, which is a number of steps"):
            read(path)


@pytest.mark.parametrize(
    "content",
    [
        "model = 3",
        "trainer = [1]",
        "x = 1",
        "[trainer]\nmax_steps = 'a'",
        "[trainer]\nnum_train_epochs = nan",
        pytest.param("x = " + "[" * 60_000, id="deep"),
        pytest.param("x = " + "1" * 5000, id="digits"),
    ],
)
def test_a_stored_configuration_that_is_none_is_damaged(tmp_path, content):
    (tmp_path / CONFIG_FILE).write_text(content)
    mine = SimpleNamespace(trainer={"max_steps": 5}, document=lambda: {"trainer": {"max_steps": 5}})
    folder = RunFolder(tmp_path)
    try:
        with pytest.raises(ResumeError, match=r"nopad_train\.toml is damaged"):
            folder.take(mine, resume=True)
    finally:
        folder.leave()
    with pytest.raises(ResumeError, match=r"nopad_train\.toml is damaged"):
        folder.is_longer(mine)


@pytest.mark.parametrize("content", [DEEP, "[]", "3", '{"finished": "all"}', '{"finished": 4.5}'])
def test_facts_of_a_run_that_are_none_are_as_if_missing(tmp_path, content):
    (tmp_path / RUN_FILE).write_text(content)
    assert RunFolder(tmp_path).facts() == {}
    with pytest.raises(ResumeError, match="missing or damaged, so nothing tells how large a step of this run was"):
        RunFolder(tmp_path).check_run("4 rows", {})


def test_lines_of_metrics_without_a_step_are_removed(tmp_path):
    kept = ['{"loss": 2.5, "step": 1}', '{"step": 3}']
    odd = ['{"step": "a"}', '{"step": null}', '{"step": [1]}', "3", '{"step"', DEEP, '{"step": 4}']
    (tmp_path / METRICS_FILE).write_text("\n".join([kept[0], *odd, kept[1], ""]))
    kept_lines(tmp_path / METRICS_FILE, 3)
    assert (tmp_path / METRICS_FILE).read_text().splitlines() == kept
