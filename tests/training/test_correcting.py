"""Which optimisers get the betas that a correction changes: asked of the Trainer itself, with hollow libraries."""

from __future__ import annotations

import importlib.metadata
import sys
import types

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from transformers.training_args import OptimizerNames

from nopad.errors import OptionError
from nopad.training.correcting import _WITH_BETAS, _check_betas

BETAS = (0.81, 0.82)
LIBRARIES = {
    "torch_xla.amp.syncfree": ["AdamW"],
    "torch_npu.optim": ["NpuFusedAdamW"],
    "bitsandbytes.optim": ["AdamW", "Lion", "RMSprop", "AdEMAMix"],
    "torchdistx.optimizers": ["AnyPrecisionAdamW"],
    "galore_torch": ["GaLoreAdafactor", "GaLoreAdamW", "GaLoreAdamW8bit"],
    "apollo_torch": ["APOLLOAdamW"],
    "lomo_optim": ["AdaLomo", "Lomo"],
    "grokadamw": ["GrokAdamW"],
    "torchao.optim": ["AdamW4bit", "AdamW8bit"],
    "schedulefree": ["AdamWScheduleFree", "RAdamScheduleFree", "SGDScheduleFree"],
    "optimi": ["StableAdamW"],
}


class Hollow:
    """Stands for any optimiser, and keeps what it is given."""

    def __init__(self, params, **options):
        self.groups, self.options = params, options


@pytest.fixture
def installed(monkeypatch):
    for path, names in LIBRARIES.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        for name in names:
            setattr(sys.modules[path], name, type(name, (Hollow,), {}))
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "torchao" else version(name))
    libraries = ("bitsandbytes", "galore_torch", "apollo_torch", "lomo", "grokadamw", "torchao", "schedulefree")
    for module in ("transformers.trainer", "transformers.trainer_optimizer"):
        for library in (*libraries, "torch_optimi"):
            if hasattr(sys.modules.get(module), name := f"is_{library}_available"):
                monkeypatch.setattr(sys.modules[module], name, lambda *_: True)


def args_of(folder, optim, **more):
    made = {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "optim_target_modules": "all-linear", "report_to": []}
    return transformers.TrainingArguments(str(folder), use_cpu=True, optim=optim, **made, **more)


def gets_betas(args):
    _, given = transformers.Trainer.get_optimizer_cls_and_kwargs(args, torch.nn.Sequential(torch.nn.Linear(2, 2)))
    groups = [given]
    if "optimizer_dict" in given:  # a hollow optimiser for each parameter
        groups = [{**one.options, **group} for one in given["optimizer_dict"].values() for group in one.groups]
    elif isinstance(given.get("params"), list):
        groups = [{**given, **group} for group in given["params"] if "params" in group]
    return all(tuple(group.get("betas", ()))[:2] == BETAS for group in groups)


@pytest.mark.parametrize("optim", [one.value for one in OptimizerNames])
def test_betas_are_corrected_where_the_trainer_gives_them(installed, tmp_path, optim):
    args = args_of(tmp_path, optim)
    assert gets_betas(args) == (optim in _WITH_BETAS)
    if optim in _WITH_BETAS:
        _check_betas(args)
    else:
        with pytest.raises(OptionError, match=f"trainer.optim '{optim}' does not get adam_beta1 and adam_beta2"):
            _check_betas(args)


def test_betas_of_optim_args_are_not_corrected(installed, tmp_path):
    args = args_of(tmp_path, "ademamix_8bit", optim_args="alpha=4, beta2=0.99")
    assert not gets_betas(args)
    with pytest.raises(OptionError, match=r"optim_args has beta2, .* give trainer\.adam_beta2 instead"):
        _check_betas(args)
    _check_betas(args_of(tmp_path, "ademamix_8bit", optim_args="alpha=4,beta3=0.9"))
