"""Models planted with one leak each: the audit must catch it, and say in which check."""

from __future__ import annotations

import pytest
import torch
from zoo import build

import nopad


def leaking(wanted):
    """A function that does nothing, whose gradient is the batch's mean too where `wanted(states)`."""

    class Leak(torch.autograd.Function):
        @staticmethod
        def forward(context, states):
            context.leaks = wanted(states)
            return states.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient + context.leaks * gradient.mean((0, 1), keepdim=True)

    return lambda module, args, output: Leak.apply(output)


def mixed(states):
    return states + 0.1 * states.mean((0, 1), keepdim=True)


def failed(verdict):
    return [check.name for check in verdict.checks if not check.passed]


class TestGradients:
    """Outputs are right in all of these, so only gradients can tell."""

    def planted(self, wanted, dtype=torch.float64):
        model = build("bert", dtype=dtype)
        model.encoder.layer[1].register_forward_hook(leaking(wanted))
        return failed(nopad.audit(model))

    def test_at_full_capacity_only(self):
        found = self.planted(lambda states: states.shape[1] > 40)
        assert found == [f"float64 gradients, {form}" for form in ("flat", "rows", "end to end")]

    def test_of_rows_in_the_dtype_of_the_model_only(self):
        found = self.planted(lambda states: states.dtype == torch.float32 and len(states) > 1, torch.float32)
        assert found == ["float32 gradients, rows"]

    def test_of_flat_in_float64_only(self):
        found = self.planted(lambda states: states.dtype == torch.float64 and states.shape[1] > 70, torch.float32)
        assert found == ["float64 gradients, flat"]

    def test_of_rows_filled_end_to_end_only(self):
        found = self.planted(lambda states: states.shape[1] == 65)
        assert found == ["float64 gradients, end to end"]


@pytest.mark.parametrize(("name", "token"), [("pad", 3), ("bos", 1), ("eos", 2)])
def test_at_one_special_token_only(name, token):
    model = build("bert", pad_token_id=3, bos_token_id=1, eos_token_id=2)

    def leak(module, args, kwargs, output):
        here = (kwargs["input_ids"] == token)[..., None]
        return torch.where(here, mixed(output), output)

    model.embeddings.register_forward_hook(leak, with_kwargs=True)
    verdict = nopad.audit(model, capacity=32, gradients=False)
    assert not verdict.isolated, f"{name}: {verdict}"
    assert "float64 outputs, flat" in failed(verdict)


def test_in_rows_that_a_sequence_crosses_only():
    model = build("bert")

    def leak(module, args, kwargs, output):
        positions = kwargs.get("position_ids")
        crossed = positions is not None and bool((positions[1:, 0] > 0).any())
        return mixed(output) if crossed else output

    model.embeddings.register_forward_hook(leak, with_kwargs=True)
    verdict = nopad.audit(model, capacity=32, gradients=False)
    assert failed(verdict) == ["float64 outputs, end to end"]
    assert verdict.first_difference == "embeddings"


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_where_targets_have_other_lengths_only(kind):
    model = build(kind, "conditional generation")

    def leak(module, args, kwargs, output):
        if kwargs["encoder_hidden_states"].shape[1] != output.last_hidden_state.shape[1]:
            output.last_hidden_state = mixed(output.last_hidden_state)
        return output

    model.get_decoder().register_forward_hook(leak, with_kwargs=True)
    verdict = nopad.audit(model, capacity=32, gradients=False)
    assert not verdict.isolated, str(verdict)
    assert "float64 outputs, flat" in failed(verdict)


class Careless(torch.nn.Module):
    """Does nothing, but in a compiled graph."""

    def forward(self, states):
        return mixed(states) if torch.compiler.is_compiling() else states


class TestCompiledLayers:
    def model(self, in_place):
        model = build("bert", "sequence classification", num_hidden_layers=1, dtype=torch.float32)
        layers = model.bert.encoder.layer
        layers[0].output.add_module("careless", Careless())
        layers[0].output.dropout = layers[0].output.careless
        if in_place:
            layers[0].compile(backend="eager")
        else:
            layers[0] = torch.compile(layers[0], backend="eager")
        return model

    @pytest.mark.parametrize("in_place", [True, False])
    def test_only_there(self, in_place):
        found = failed(nopad.audit(self.model(in_place), capacity=16, gradients=False))
        assert found[:2] == ["float32 outputs, flat, 1 parts compiled", "float32 outputs, rows, 1 parts compiled"]

    def test_without_a_leak(self):
        model = self.model(True)
        model.bert.encoder.layer[0].output.dropout = torch.nn.Identity()
        verdict = nopad.audit(model, capacity=16, gradients=False)
        assert "float32 outputs, rows, 1 parts compiled" in [check.name for check in verdict.checks]
        assert not [name for name in failed(verdict) if "end to end" not in name], str(verdict)

    def test_without_a_compiler(self):
        def none(graph, inputs):
            raise RuntimeError("no C++ compiler found")

        model = build("bert", num_hidden_layers=1, dtype=torch.float32)
        model.encoder.layer[0].compile(backend=none)
        verdict = nopad.audit(model, capacity=16, gradients=False)
        assert verdict.isolated, str(verdict)
        [note] = [note for note in verdict.notes if "compile" in note]
        assert note.startswith("compiled layers were not audited, for no compiler works here: BackendCompilerFailed")
        assert "RuntimeError: no C++ compiler found" in note


class TestExceptions:
    """Whatever a foreign model raises is a check that says so."""

    def test_on_packs_only(self):
        model = build("bert")

        def fails(module, args, output):
            if len(output) > 1:
                raise IndexError("nothing\nto see")

        model.encoder.layer[1].register_forward_hook(fails)
        verdict = nopad.audit(model, capacity=32)
        assert verdict.outcome == "failed"
        check = next(check for check in verdict.checks if not check.passed)
        assert (check.name, check.error) == ("float64 outputs, rows", "IndexError")
        assert check.detail.startswith("packed, rows: IndexError: nothing to see (test_planted.py:")
        assert str(verdict).startswith("BertModel, nopad, backend 'auto': FAILED\n")
        assert "float64 gradients, flat" in [check.name for check in verdict.checks if check.passed]

    @pytest.mark.parametrize(
        "error", [KeyError("x"), ValueError("y"), RuntimeError(""), AssertionError(), StopIteration()]
    )
    def test_alone(self, error):
        model = build("bert", dtype=torch.float32)

        def fails(module, args):
            raise error

        model.register_forward_pre_hook(fails)
        verdict = nopad.audit(model, capacity=32)
        assert verdict.outcome == "failed"
        names = ["float64 outputs, alone", "float32 outputs, alone"]
        assert [(check.name, check.error) for check in verdict.checks] == [
            (name, type(error).__name__) for name in names
        ]

    def test_in_the_backward_pass(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(context, states):
                context.packed = states.shape[1] > 40
                return states.clone()

            @staticmethod
            def backward(context, gradient):
                if context.packed:
                    raise ZeroDivisionError("none here")
                return gradient

        model = build("bert")
        model.encoder.layer[1].register_forward_hook(lambda module, args, output: Fails.apply(output))
        verdict = nopad.audit(model, capacity=32)
        assert verdict.outcome == "failed"
        [check] = [check for check in verdict.checks if not check.passed]
        assert (check.name, check.error) == ("float64 gradients, flat", "ZeroDivisionError")

    def test_in_a_copy(self):
        model = build("bert")

        class Uncopied(torch.nn.Module):
            def __deepcopy__(self, memo):
                raise TypeError("no copies")

        model.add_module("odd", Uncopied())
        verdict = nopad.audit(model, capacity=32)
        assert verdict.outcome == "failed"
        assert verdict.checks[0].error == "TypeError"
        assert "BertModel cannot be copied in torch.float64: TypeError: no copies" in verdict.checks[0].detail

    def test_results_that_are_no_mapping(self):
        model = build("bert")
        model.register_forward_hook(lambda module, args, output: output.last_hidden_state)
        verdict = nopad.audit(model, capacity=32)
        assert verdict.isolated, str(verdict)
        assert verdict.checks[0].detail == "output 0"

    def test_a_result_that_is_missing_on_packs(self):
        model = build("bert")

        def drop(module, args, output):
            return {"last_hidden_state": output.last_hidden_state} if output.pooler_output.shape[0] > 1 else output

        model.register_forward_hook(drop)
        verdict = nopad.audit(model, capacity=32)
        assert not verdict.isolated
        assert verdict.outcome == "contaminated"
        assert verdict.checks[0].detail == "pooler_output: only alone, and not of packs"


@pytest.mark.parametrize(("capacity", "longest"), [(16, 39), (64, 159)])
def test_the_longest_row_is_noted(capacity, longest):
    verdict = nopad.audit(build("bert", max_position_embeddings=80), capacity=capacity, gradients=False)
    assert f"the longest row that was tried has {longest} slots" in verdict.notes
