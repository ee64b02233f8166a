"""The packing factor as it is measured, and what a correction does to hyper-parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

import nopad
from nopad.corpus import IterableSource
from nopad.errors import OptionError
from nopad.training import factor_of, scale_for_packing

LENGTHS = np.random.default_rng(3).integers(1, 30, size=200)
DATA = [np.full(length, 1) for length in LENGTHS]


@pytest.mark.parametrize("last", ["fill", "short", "drop"])
@pytest.mark.parametrize(("rows", "accumulation"), [(1, 1), (4, 2), (8, 1)])
def test_the_factor_of_a_loader_is_that_of_its_packs(last, rows, accumulation):
    loader = nopad.PackedLoader(DATA, 32, rows=rows, accumulation=accumulation, last=last, rank=0, world_size=1)
    packs = len(nopad.pack(LENGTHS, 32))
    assert factor_of(loader) == factor_of(loader.summary()) == LENGTHS.size / packs
    for _ in range(3):  # the same from the middle of an epoch
        next(iter(loader))
    assert factor_of(loader) == LENGTHS.size / packs


def test_the_factor_of_plans_packs_and_datasets(tmp_path):
    plan, packs = nopad.plan(LENGTHS, 32), nopad.pack(LENGTHS, 32)
    wanted = LENGTHS.size / plan.packs
    assert factor_of(plan) == wanted == factor_of(packs)
    folder = tmp_path / "packed"
    source = IterableSource([[1] * length for length in LENGTHS.tolist()])
    nopad.pack_corpus(source, folder, nopad.CorpusOptions(capacity=32))
    dataset = nopad.open_packed(folder)
    assert factor_of(dataset) == factor_of(dataset.manifest) == wanted
    assert [factor_of(number) for number in (1, 1.913, np.float64(2))] == [1.0, 1.913, 2.0]


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (0.99, "the packing factor is 0.99; it is sequences per pack, a finite number from 1"),
        (0, "the packing factor is 0;"),
        (-2.0, "the packing factor is -2.0"),
        (math.nan, "the packing factor is nan"),
        (math.inf, "the packing factor is inf"),
        (True, "cannot be measured from a bool"),
        ("2", "cannot be measured from a str"),
        (None, "cannot be measured from a NoneType; give a PackedLoader"),
    ],
)
def test_no_factor(measured, message):
    for how in ("accumulation", "betas", "none"):
        with pytest.raises(OptionError) as caught:
            scale_for_packing({"accumulation": 4, "betas": (0.9, 0.99)}, measured, how)
        assert message in str(caught.value)


def test_loaders_that_have_none():
    flat = nopad.PackedLoader(DATA, sequences=4, rank=0, world_size=1)
    tokens = nopad.PackedLoader(DATA, tokens=64, rank=0, world_size=1)
    for loader in (flat, tokens):
        with pytest.raises(OptionError, match="the packing factor is not known: this loader's steps are not rows"):
            factor_of(loader)
    stream = nopad.PackedLoader(lambda: iter([{"input_ids": [1]}]), 8, rows=1, exhausted="repeat")
    with pytest.raises(OptionError, match="cannot be measured from a stream"):
        factor_of(stream)
    with pytest.raises(OptionError, match="there is no pack"):
        factor_of(nopad.pack([], 8))


@pytest.mark.parametrize(
    ("before", "p", "after"),
    [(8, 2.0, 4), (8, 1.913, 4), (6, 1.913, 3), (3, 1.913, 2), (2, 1.3, 2), (3, 5.0, 1), (100, 1.0, 100), (10, 1.4, 7)],
)
def test_fewer_micro_steps(before, p, after):
    made = scale_for_packing({"gradient_accumulation_steps": before, "per_device_train_batch_size": 4}, p)
    assert made.hparams["gradient_accumulation_steps"] == after
    assert made.changed == ({"gradient_accumulation_steps": (before, after)} if before != after else {})
    # nothing nearer, as a ratio
    off = {n: abs(math.log(n * p / before)) for n in range(1, 200)}
    assert off[after] == min(off.values())
    said = str(made)
    assert f"{after * 4 * p:,.1f} sequences per rank, and had {before * 4:,}: {after * p / before:.2f} times" in said
    assert ("was rounded to" in said) == (abs(after * p / before - 1) >= 0.01)


def test_betas_to_the_power_of_the_factor():
    made = scale_for_packing({"betas": (0.81, 0.95), "warmup_steps": 100, "max_steps": 0}, 2, "betas")
    assert made.hparams["betas"] == pytest.approx((0.6561, 0.9025), rel=1e-15)  # the paper prints 0.66
    assert made.changed["betas"] == ((0.81, 0.95), made.hparams["betas"])
    assert "betas (0.81, 0.95) -> (0.6561, 0.9025): to the power of 2" in str(made)
    assert "warmup_steps=100 see 2.00 times as many sequences" in str(made)
    assert "max_steps" not in str(made)
    other = scale_for_packing({"beta1": 0.9, "beta2": 0.999, "lr": 1}, 1.913, "betas")
    assert other.hparams == {"beta1": 0.9**1.913, "beta2": 0.999**1.913, "lr": 1}


def test_nothing():
    given = {"accumulation": 4, "betas": (0.9, 0.99)}
    made = scale_for_packing(given, 2.0, "none")
    assert (made.hparams, made.changed, made.factor, made.how) == (given, {}, 2.0, "none")
    assert str(made) == "correct  nothing, though a step has 2.00 times as many sequences"


@dataclass(frozen=True)
class Frozen:
    accumulation: int = 4
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass
class Open:
    accumulation: int = 4
    beta1: float = 0.9
    beta2: float = 0.99


@pytest.mark.parametrize("kind", [Frozen, Open])
def test_dataclasses(kind):
    given = kind()
    made = scale_for_packing(given, nopad.plan([4, 4, 4, 4], 8))
    assert (made.hparams.accumulation, given.accumulation) == (2, 4)
    assert type(made.hparams) is kind
    scale_for_packing(given, 2.0, "betas")
    assert given == kind()


def test_the_arguments_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    args = transformers.TrainingArguments(
        str(tmp_path), gradient_accumulation_steps=6, per_device_train_batch_size=2, use_cpu=True, max_steps=7
    )
    fewer, betas = scale_for_packing(args, 2.0), scale_for_packing(args, 2.0, "betas")
    assert (fewer.hparams.gradient_accumulation_steps, args.gradient_accumulation_steps) == (3, 6)
    assert (betas.hparams.adam_beta1, betas.hparams.adam_beta2) == (args.adam_beta1**2, args.adam_beta2**2)
    assert (args.adam_beta1, betas.hparams.gradient_accumulation_steps) == (0.9, 6)
    assert "max_steps=7 see 2.00 times as many sequences" in str(betas)
    assert fewer.hparams.device == args.device


@pytest.mark.parametrize(
    ("hparams", "how", "message"),
    [
        ({"accumulation": 1}, "accumulation", "accumulation is 1 already, and a pack holds 1.90 sequences"),
        ({"accumulation": 0}, "accumulation", "accumulation is 0; it is a number of micro-steps, from 1"),
        ({"accumulation": 2.0}, "accumulation", "accumulation is 2.0; it is a number"),
        ({}, "accumulation", "have neither; give one of gradient_accumulation_steps, accumulation"),
        (
            {"accumulation": 1, "gradient_accumulation_steps": 2},
            "accumulation",
            "have gradient_accumulation_steps and accumulation; give one",
        ),
        ({"lr": 1}, "betas", "have no betas; give adam_beta1 and adam_beta2 or beta1 and beta2 or betas"),
        ({"betas": (0.9, 0.9), "beta1": 0.9, "beta2": 0.9}, "betas", "have two forms of betas"),
        ({"betas": (0.9, 1.0)}, "betas", r"betas are (0.9, 1.0); they are two numbers from 0 to below 1"),
        ({"betas": (0.9,)}, "betas", "betas are (0.9,)"),
        ({}, "beta", "how is 'beta'; it is 'accumulation', 'betas' or 'none'"),
        (3, "none", "hyper-parameters are a int; give transformers.TrainingArguments"),
    ],
)
def test_hyper_parameters_that_cannot_be_corrected(hparams, how, message):
    with pytest.raises(OptionError) as caught:
        scale_for_packing(hparams, 1.9, how)
    assert message in str(caught.value)


def test_a_step_that_changes_says_so():
    said = str(scale_for_packing({"accumulation": 8, "warmup_steps": 100}, 100))
    assert "nothing else" not in said
    assert "12.50 times as many" in said
    assert "warmup_steps=100 see 12.50 times as many sequences" in said
    for bad, what in (({"betas": None}, "betas"), ({"accumulation": 8, "rows": "x"}, "accumulation")):
        with pytest.raises(OptionError, match=r"betas are None|rows per micro-step are 'x'"):
            scale_for_packing(bad, 2, what)
