from __future__ import annotations

import json
import random

import numpy as np
import pytest

import nopad
from nopad import SeveralPlan
from nopad.errors import FormatError
from nopad.planning.several.plan_file import parsed


@pytest.fixture(scope="module")
def plans():
    """One kind and two, each with a bound that only a certificate proves."""
    rng = np.random.default_rng(3)
    ladder = nopad.plan_several(rng.integers(9, 60, 300), [24, 60], [1, 3.1])
    sizes = np.stack([rng.integers(13, 41, 200), rng.integers(0, 9, 200)], axis=1)
    both = nopad.plan_several(sizes, [(24, 9), (60, 16)], [1, 2.75])
    assert ladder.certificate is not None
    assert both.certificate is not None
    return ladder, both


def load(text):
    return SeveralPlan(**parsed(text, "p"))


def test_there_and_back(tmp_path, plans):
    for plan in (*plans, nopad.plan_several([], [8]), nopad.plan_several([3, 4], [8, 4], depth=1)):
        path = tmp_path / "p.plan.json"
        plan.save(path)
        again = SeveralPlan.load(path)
        assert again == plan
        assert hash(again) == hash(plan)
        assert again.verify() == []
        assert (again.price, again.lower_bound, again.packs) == (plan.price, plan.lower_bound, plan.packs)
        assert nopad.verify(path) == []


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(FormatError, match="cannot read the plan"):
        SeveralPlan.load(tmp_path / "none")
    for text, problem in (("{", "is not JSON"), ("[]", "is no plan"), ('{"format": 1, "format": 2}', "comes twice")):
        with pytest.raises(FormatError, match=problem):
            load(text)


def change(document, path, value):
    *inside, last = path
    for key in inside:
        document = document[key]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format_version"], True),
        (["format_version"], 2),
        (["capacities"], [24]),
        (["capacities"], [24, 24]),
        (["capacities", 0], True),
        (["capacities", 0], 24.0),
        (["prices", 0], True),
        (["prices", 0], -1),
        (["prices", 0], "1"),
        (["prices", 1], 4),
        (["depth"], True),
        (["depth"], 0),
        (["notes"], [1]),
        (["packs", 0], 3.0),
        (["sequences"], 500.0),
        (["price"], 1),
        (["unit"], [1, True]),
        (["lower_bound", "price"], 3.0),
        (["lower_bound", "proof"], 3),
        (["strategies", 0, "count"], True),
        (["strategies", 0, "count"], 0),
        (["strategies", 0, "count"], 2**63),
        (["strategies", 0, "sizes"], []),
        (["strategies", 0, "sizes", 0], 1.0),
        (["strategies", 0, "sizes", 0], 0),
        (["strategies", 0, "sizes", 0], 2**31),
        (["strategies", 0, "sizes", 0], [1]),
        (["strategies", 0, "capacity"], 25),
        (["strategies", 0, "capacity"], True),
        (["certificate", "rates", 0], True),
        (["certificate", "rates"], [1]),
        (["certificate", "units", 0], 0),
        (["certificate", "extras", 0], [1, 2]),
        (["certificate", "extras", 0, 2], 2**60),
        (["certificate", "extras", 0, 2], 0),
    ],
)
def test_a_changed_file_is_refused(plans, path, value):
    document = json.loads(plans[0].to_json())
    change(document, path, value)
    with pytest.raises(FormatError):
        load(json.dumps(document))


def test_a_strategy_out_of_order_and_a_nan_are_refused(plans):
    for plan in plans:
        document = json.loads(plan.to_json())
        sizes = next(s["sizes"] for s in document["strategies"] if len({str(size) for size in s["sizes"]}) > 1)
        sizes.reverse()
        with pytest.raises(FormatError, match="sizes are listed largest first"):
            load(json.dumps(document))
    with pytest.raises(FormatError, match="is not JSON: NaN is no number"):
        load(plans[0].to_json().replace('"notes"', '"more": NaN, "notes"'))


def test_a_false_bound_is_found(plans):
    for plan in plans:
        document = json.loads(plan.to_json())
        document["lower_bound"]["price"] += 1
        assert "can be proven" in load(json.dumps(document)).verify()[0]
        document["lower_bound"]["price"] -= 1
        document["lower_bound"]["proof"] = "sizes"
        assert "the proof of the lower bound is stated" in load(json.dumps(document)).verify()[0]


def test_a_pack_above_its_capacity_is_found(plans):
    plan = plans[1]
    document = json.loads(plan.to_json())
    last = document["strategies"][-1]
    assert last["capacity"] == [60, 16]
    last["capacity"] = [24, 9]
    document["packs"] = [document["packs"][0] + last["count"], document["packs"][1] - last["count"]]
    document["price"] -= 7 * last["count"]  # 2.75 - 1 in quarters
    assert any("above its capacity of 24 x 9" in problem for problem in load(json.dumps(document)).verify())


@pytest.mark.slow
def test_no_change_of_a_certificate_proves_too_much(plans):
    """A thousand mutations: each is refused, found out, or proves a bound that the plan itself does not contradict."""
    rng = random.Random(0)
    for plan in plans:
        text = plan.to_json()
        for _ in range(500):
            document = json.loads(text)
            proof = document["certificate"]
            for _ in range(rng.randint(1, 3)):
                if rng.random() < 0.3:
                    proof[rng.choice(["rates", "units"])][rng.randrange(2)] = rng.choice([0, 1, 2, 2**30, 2**40, -1])
                else:
                    extra = rng.choice(proof["extras"])
                    at = rng.randrange(3)
                    extra[at] = rng.choice([extra[at] + 1, extra[at] * 2, extra[at] // 2, 1, 0, 2**50])
            try:
                changed = load(json.dumps(document))
            except FormatError:
                continue
            problems = changed.verify()
            proven = changed.bound.price if not problems else None
            assert proven is None or proven <= plan.whole_price
