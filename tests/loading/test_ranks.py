from __future__ import annotations

import pytest

from nopad.errors import OptionError
from nopad.loading import Ranks
from nopad.loading.agreement import check_agreement, exchange_of


class Group:
    """What a torch process group tells of itself."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


class Mesh:
    """What a torch DeviceMesh tells of itself."""

    def __init__(self, rank, size, ndim=1):
        self._rank, self._size, self.ndim = rank, size, ndim

    def get_local_rank(self):
        return self._rank

    def size(self):
        return self._size


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_one_rank_without_any_sign_of_more():
    assert Ranks.found() == Ranks(rank=0, world_size=1, node_size=1)


def test_from_the_environment_as_torchrun_sets_it(monkeypatch):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert Ranks.found() == Ranks(rank=9, world_size=16, node_size=16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    found = Ranks.found()
    assert (found.rank, found.world_size, found.node_size, found.node) == (9, 16, 8, 1)
    assert Ranks.found(rank=1, world_size=3) == Ranks(rank=1, world_size=3, node_size=3)  # 8 does not divide 3


@pytest.mark.parametrize("kind", [Group, Mesh])
def test_from_a_group_of_those_that_take_different_data(monkeypatch, kind):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    found = Ranks.found(group=kind(1, 4))
    assert (found.rank, found.world_size, found.node_size) == (1, 4, 4)
    assert Ranks.found(group=kind(1, 4), node_size=2).node == 0
    with pytest.raises(OptionError, match="rank 2 of 4 is given, and in the group it is 1 of 4"):
        Ranks.found(group=kind(1, 4), rank=2, world_size=4)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (3, "group is of type int"),
        (Mesh(0, 4, ndim=2), "a DeviceMesh of 2 dimensions"),
        (Group(-1, 4), "this process is not in the group"),
    ],
)
def test_what_is_no_group_is_refused(group, message):
    with pytest.raises(OptionError, match=message):
        Ranks.found(group=group)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "1"}, "has only one; set both"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one' in the environment"),
        ({"RANK": "1" * 5000, "WORLD_SIZE": "2"}, "RANK is '1+' in the environment; expected a number from 0 to"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "the last is number 1"),
    ],
)
def test_an_environment_that_cannot_be_is_refused(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=message):
        Ranks.found()


def exchange(*facts):
    """What all_gather_object would return to each of these ranks."""
    everyone = [{"rank": rank, "facts": found} for rank, found in facts]
    return lambda mine: everyone


def test_ranks_that_disagree_are_named_alike_on_all_of_them():
    ranks = Ranks(rank=1, world_size=3)
    same = {"seed": 0, "data": "abc"}
    check_agreement(ranks, same, exchange((0, same), (1, same), (2, same)))
    with pytest.raises(OptionError, match=r"disagree about seed: 0 on process 0, 5 on process 2 \(1 of 3 differ"):
        check_agreement(ranks, same, exchange((0, same), (1, same), (2, {**same, "seed": 5})))
    with pytest.raises(OptionError, match=r"have the ranks \[0, 1, 1\]; expected each of 0 to 2 once"):
        check_agreement(ranks, same, exchange((0, same), (1, same), (1, same)))
    with pytest.raises(OptionError, match="disagree about more"):
        check_agreement(ranks, same, exchange((0, same), (1, {**same, "more": 1}), (2, same)))
    check_agreement(ranks, same, None)


def test_without_torch_distributed_nothing_is_exchanged():
    assert exchange_of(Ranks(rank=1, world_size=3)) is None
