"""`Lamb` against the rule written out by hand, and timm's where it is installed; what it refuses; its state."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from nopad.errors import OptionError, TrainingError
from nopad.training import Lamb, decay_groups

SHAPES = [(5, 3), (7,), (), (2, 2, 2), (0, 4)]


def parameters(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES
    ]
    made.append(torch.nn.Parameter(torch.zeros(4, dtype=dtype)))  # a norm of 0
    return made


def gradients(params, step, scale=1.0):
    """Gradients of a step; one in five is zero, and every third step leaves the second parameter without."""
    generator = torch.Generator().manual_seed(1000 + step)
    for at, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64) * scale
        param.grad = (grad * ((step + at) % 5 > 0)).to(param.dtype)
    params[1].grad = None if step % 3 == 1 else params[1].grad


class Rule:
    """The rule, value by value, in Python's floats."""

    def __init__(self, groups):
        self.groups = [
            ({**options}, [[p.detach().reshape(-1).tolist(), None, None, 0] for p in params])
            for params, options in groups
        ]

    def step(self, grads):
        every = [g for group in grads for grad in group if grad is not None for g in grad]
        total = math.sqrt(math.fsum(g * g for g in every))
        for (o, held), theirs in zip(self.groups, grads, strict=True):
            most = o["max_grad_norm"]
            by = 1.0 if most is None or total <= most else total / most
            for one, grad in zip(held, theirs, strict=True):
                if grad is None:
                    continue
                p, m, v, t = one
                t += 1
                m, v = m or [0.0] * len(p), v or [0.0] * len(p)
                b1, b2 = o["betas"]
                c1, c2 = (1 - b1**t, 1 - b2**t) if o["bias_correction"] else (1.0, 1.0)
                m = [b1 * a + (1 - b1) * g / by for a, g in zip(m, grad, strict=True)]
                v = [b2 * a + (1 - b2) * (g / by) ** 2 for a, g in zip(v, grad, strict=True)]
                u = [
                    a / c1 / (math.sqrt(b / c2) + o["eps"]) + o["weight_decay"] * w
                    for a, b, w in zip(m, v, p, strict=True)
                ]
                ratio = 1.0
                if o["weight_decay"] or o["adapt_undecayed"]:
                    size, weight = (math.sqrt(math.fsum(x * x for x in values)) for values in (u, p))
                    if size and weight:
                        ratio = min(weight, o["max_weight_norm"] or math.inf) / size
                    ratio = min(ratio, o["max_trust_ratio"] or math.inf)
                one[:] = [w - o["lr"] * ratio * x for w, x in zip(p, u, strict=True)], m, v, t


USUAL = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-6,
    "weight_decay": 0.01,
    "bias_correction": True,
    "max_grad_norm": 1.0,
    "max_weight_norm": None,
    "max_trust_ratio": None,
    "adapt_undecayed": False,
}
SWITCHES = [
    {},
    {"bias_correction": False},
    {"max_grad_norm": None},
    {"max_grad_norm": 1e-3, "lr": 0.1},
    {"max_weight_norm": 0.5},
    {"max_trust_ratio": 1.0},
    {"adapt_undecayed": True},
    {"betas": (0.0, 0.0), "eps": 0.1},
    {"bias_correction": False, "max_grad_norm": None, "max_weight_norm": 10.0, "adapt_undecayed": True},  # the paper's
]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_every_step_is_that_of_the_rule(switches, foreach):
    params = parameters()
    options = USUAL | switches
    groups = [(params[:3], options), (params[3:], options | {"weight_decay": 0.0, "lr": 5e-3})]
    rule = Rule(groups)
    made = [{"params": some, "weight_decay": o["weight_decay"], "lr": o["lr"]} for some, o in groups]
    optimizer = Lamb(made, **switches, foreach=foreach)
    for step in range(12):
        gradients(params, step)
        rule.step([[None if p.grad is None else p.grad.reshape(-1).tolist() for p in some] for some, _ in groups])
        optimizer.step()
        for param, (values, m, v, t) in zip(params, [one for _, held in rule.groups for one in held], strict=True):
            assert param.detach().reshape(-1).tolist() == pytest.approx(values, rel=1e-12, abs=1e-14)
            if t:
                state = optimizer.state[param]
                assert state["step"] == t
                assert state["exp_avg"].reshape(-1).tolist() == pytest.approx(m, rel=1e-12, abs=1e-14)
                assert state["exp_avg_sq"].reshape(-1).tolist() == pytest.approx(v, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_by_one_and_together_give_the_same_bits(dtype):
    alone, together = parameters(dtype), parameters(dtype)
    runs = [(alone, Lamb(alone, lr=0.01, foreach=False)), (together, Lamb(together, lr=0.01, foreach=True))]
    for step in range(8):
        for params, optimizer in runs:
            gradients(params, step)
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert not torch.equal(alone[0], parameters(dtype)[0])


def test_mixed_types_are_updated_as_each_would_be_without_a_common_norm():
    mixed = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    optimizer = Lamb(mixed, foreach=True, max_grad_norm=1.0)
    for param in mixed:
        param.grad = torch.full_like(param, 2.0)  # of all together: 6
    optimizer.step()
    for param in mixed:
        assert optimizer.state[param]["exp_avg"].tolist() == pytest.approx([0.1 * 2 / 6] * 3, rel=5e-3)


def test_timm_takes_the_same_steps():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    from timm.optim.lamb import Lamb as Theirs

    assert timm.__version__
    mine, other = parameters(), parameters()
    del mine[1], other[1]  # timm counts steps per group: every parameter needs a gradient in each

    def groups(params):
        return [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]

    ours, theirs = Lamb(groups(mine), lr=0.01), Theirs(groups(other), lr=0.01, weight_decay=0.01)
    for step in range(10):
        for params, optimizer in ((mine, ours), (other, theirs)):
            generator = torch.Generator().manual_seed(step)
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_state_goes_on_bit_for_bit(tmp_path):
    params = parameters()
    optimizer = Lamb(params, lr=0.01, betas=(0.8, 0.95), max_trust_ratio=2.0)
    for step in range(4):
        gradients(params, step)
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    copied = [torch.nn.Parameter(param.detach().clone()) for param in params]
    other = Lamb(copied)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in range(4, 8):
        for some, one in ((params, optimizer), (copied, other)):
            gradients(some, step)
            one.step()
    assert all(torch.equal(a, b) for a, b in zip(params, copied, strict=True))
    assert other.param_groups[0]["betas"] == (0.8, 0.95)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("most", [1.0, None])
def test_a_gradient_that_is_not_finite_changes_nothing(bad, most):
    params = parameters()
    optimizer = Lamb([{"params": params[:2]}, {"params": params[2:]}], max_grad_norm=most)
    gradients(params, 0)
    optimizer.step()
    before = copy.deepcopy(([p.detach() for p in params], optimizer.state_dict()))
    gradients(params, 2)
    params[3].grad[1, 0, 1] = bad
    with pytest.raises(TrainingError, match=r"shape \(2, 2, 2\), number 1 of group 1, .*nothing was changed"):
        optimizer.step()
    after = ([p.detach() for p in params], optimizer.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    for at, state in before[1]["state"].items():
        assert all(torch.equal(value, after[1]["state"][at][name]) for name, value in state.items())
    gradients(params, 2)
    optimizer.step()


def test_gradients_that_are_none_and_closures():
    params = parameters()
    optimizer = Lamb(params)
    optimizer.step()
    assert not optimizer.state

    def closure():
        optimizer.zero_grad()
        loss = sum((param**2).sum() for param in params)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr of group 0 is -1.0; it must be a finite number from 0"),
        ({"lr": math.nan}, "lr of group 0 is nan"),
        ({"lr": torch.tensor(0.1)}, "and no tensor"),
        ({"lr": 10**400}, "lr of group 0 is 1000"),
        ({"betas": (0.9, 1.0)}, "betas of group 0 is .*two numbers from 0 to below 1"),
        ({"betas": 0.9}, "betas of group 0 is 0.9"),
        ({"eps": -1e-9}, "eps of group 0"),
        ({"weight_decay": -0.1}, "weight_decay of group 0"),
        ({"weight_decay": 0.0}, "this would be Adam; give a weight_decay"),
        ({"max_grad_norm": 0.0}, "max_grad_norm of group 0 is 0.0; it must be a finite number above 0, or None"),
        ({"max_weight_norm": -1}, "max_weight_norm of group 0"),
        ({"max_trust_ratio": math.inf}, "max_trust_ratio of group 0"),
        ({"bias_correction": 1}, "bias_correction of group 0 is 1; it must be True or False"),
        ({"adapt_undecayed": None}, "adapt_undecayed of group 0"),
        ({"foreach": "yes"}, "foreach of group 0"),
    ],
)
def test_options_without_a_meaning(options, message):
    with pytest.raises(OptionError, match=message):
        Lamb(parameters(), **options)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 0), (torch.float32, 1e-50), (torch.float16, 1e-8)])
def test_an_eps_that_vanishes_would_make_parameters_nan(dtype, eps):
    """1e-8 is the default of transformers' TrainingArguments."""
    with pytest.raises(OptionError, match=rf"eps of group 0 is {eps}, which is 0 in float(32|16); take at least"):
        Lamb([torch.nn.Parameter(torch.ones(3, dtype=dtype))], eps=eps)


def test_parameters_that_it_cannot_take():
    with pytest.raises(OptionError, match=r"parameter 1 of group 0 is torch.complex64.*view_as_real"):
        Lamb([torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(OptionError, match=r"parameter 0 of group 0 is torch.sparse_coo"):
        Lamb([torch.nn.Parameter(torch.eye(2).to_sparse())])
    piece = torch.nn.Parameter(torch.zeros(2))
    piece._fsdp_flattened = True
    with pytest.raises(OptionError, match=r"a piece that FSDP1 has cut.*FSDP2"):
        Lamb([piece])
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = Lamb(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(OptionError, match=r"the gradient of parameter 0 of group 0 is sparse.*sparse=False"):
        optimizer.step()
    assert not optimizer.state


def test_groups_that_cannot_share_a_norm():
    optimizer = Lamb(parameters())
    with pytest.raises(OptionError, match=r"group 1 has max_grad_norm None, and group 0 1.0"):
        optimizer.add_param_group({"params": parameters(seed=1), "max_grad_norm": None})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_decay_leaves_out_what_transformers_leaves_out(kind):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    if kind == "bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=32, **sizes))
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes))
    trained = dict(model.named_parameters()).keys()  # without second names of tied weights
    wanted = trained & set(transformers.Trainer.get_decay_parameter_names(None, model))
    decayed, others = decay_groups(model, 0.1)
    names = {id(param): name for name, param in model.named_parameters()}
    assert {names[id(param)] for param in decayed["params"]} == wanted
    assert {names[id(param)] for param in others["params"]} == set(names.values()) - wanted
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)


def test_norms_whose_total_is_too_large_are_named_by_the_largest():
    params = [torch.nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (1, 2)]
    optimizer = Lamb(params, max_grad_norm=1.0)
    for param, size in zip(params, (1.3e308, 1e308), strict=True):
        param.grad = torch.full_like(param, size)
    with pytest.raises(TrainingError, match=r"shape \(2,\), number 1 of group 0, .*too large for its norm"):
        optimizer.step()
    assert all(bool((param == 1).all()) for param in params)


def test_what_the_trainer_gets():
    args = types.SimpleNamespace(learning_rate=0.1, adam_beta1=0.5, adam_beta2=0.6, adam_epsilon=1e-3, weight_decay=0.2)
    kind, options = Lamb.of(args, max_trust_ratio=3.0)
    group = kind(parameters(), **options).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.1, (0.5, 0.6), 1e-3, 0.2)
    assert (group["max_grad_norm"], group["max_trust_ratio"]) == (None, 3.0)


def test_shards_of_fsdp2_are_updated_as_whole_tensors():
    """On two ranks; and a gradient that is not finite on one of them stops both."""
    program = Path(__file__).with_name("fsdp_program.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines.count("stopped") == 4
    apart = [float(line.split()[1]) for line in lines if line.startswith("apart")]
    assert len(apart) == 4
    assert max(apart) < 1e-14


@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_theorem_for_constant_gradients(p):
    """p steps with beta1, beta2 leave the moments that one step with beta1^p, beta2^p leaves; so does each after it."""
    gradient = torch.linspace(-3, 2, 11, dtype=torch.float64)
    many, few = (torch.nn.Parameter(torch.ones(11, dtype=torch.float64)) for _ in range(2))
    unpacked = Lamb([many], betas=(0.81, 0.95), max_grad_norm=None)
    packed = Lamb([few], betas=(0.81**p, 0.95**p), max_grad_norm=None)
    for _ in range(4):
        few.grad = gradient.clone()
        packed.step()
        for _ in range(p):
            many.grad = gradient.clone()
            unpacked.step()
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(unpacked.state[many][name], packed.state[few][name], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(many, few)  # p steps are still p steps
