"""Trainers of mixtures of experts: what a step adds to balance them, and that it is said."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import copy

import torch
import transformers
from runs import arguments, watched
from runs import loader as loader_of
from tests.tasks.test_routing import EXPERTS, SIZES

import nopad
from nopad.tasks import OfTokens
from nopad.training import PackedTrainer
from nopad.training.config import read_config
from nopad.training.ready import prepare

pytestmark = pytest.mark.filterwarnings("ignore")


def mixture():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(vocab_size=128, output_router_logits=True, **SIZES | EXPERTS)
    return nopad.packed(transformers.MixtralForCausalLM(config))


def loader():
    """Its first two batches have 45 and 54 labels."""
    return loader_of(seed=5)


def first_step():
    """The losses of the first step's micro-batches: their denominator, cross-entropies, and what balances experts."""
    model, made, objective = mixture().train(), loader(), OfTokens(causal=True)
    batches = [batch for _, batch in zip(range(made.accumulation), made, strict=False)]
    counts = [objective.denominator(batch) for batch in batches]
    outputs = [model(**{name: batch[name] for name in batch if name != "labels"}) for batch in batches]
    tokens = sum(objective.loss(one, batch, sum(counts)) for one, batch in zip(outputs, batches, strict=True))
    assert [count.item() for count in counts] == [45, 54]
    return tokens.item(), [float(count / sum(counts)) for count in counts], [one.aux_loss.item() for one in outputs]


def test_it_is_learned_and_said(tmp_path, capsys):
    tokens, shares, balances = first_step()
    how = arguments(tmp_path, num_train_epochs=1)
    trainer = watched(PackedTrainer)(mixture(), how, train_dataset=loader(), eval_dataset=loader())
    trainer.train()
    wanted = tokens + 0.5 * sum(share * balance for share, balance in zip(shares, balances, strict=True))
    assert trainer.losses[0] == pytest.approx(wanted, rel=1e-5)
    assert "experts  0.5 times the loss that balances them (aux_loss) is learned too" in capsys.readouterr().out
    evaluated = trainer.evaluate()
    trainer.model.config.output_router_logits = False
    assert trainer.evaluate()["eval_loss"] == pytest.approx(evaluated["eval_loss"], rel=1e-12)


def test_nothing_is_said_where_it_is_not_learned(tmp_path, capsys):
    model = mixture()
    model.config.output_router_logits = False
    trainer = watched(PackedTrainer)(model, arguments(tmp_path, max_steps=1), train_dataset=loader())
    trainer.train()
    assert trainer.losses[0] == pytest.approx(first_step()[0], rel=1e-5)
    assert "experts" not in capsys.readouterr().out


def test_a_step_is_audited_without_it(tmp_path):
    trainer = PackedTrainer(mixture(), arguments(tmp_path), train_dataset=loader(), quiet=True)
    verdict = nopad.audit_step(trainer=trainer)
    assert verdict.passed, str(verdict)
    assert any("the loss that balances experts is left out" in note for note in verdict.notes)
    assert trainer.model.config.output_router_logits


class TestTRL:
    """TRL's own loss: a mean over the micro-batches, however many tokens they have, and none with label smoothing."""

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_what_is_said_is_what_is_done(self, tmp_path, caplog, smoothing):
        trl = pytest.importorskip("trl")
        from nopad.training import PackedSFTTrainer

        if smoothing:
            from nopad.training.trl import _SMOOTHS_OVER_THE_STEP

            if not _SMOOTHS_OVER_THE_STEP:
                pytest.skip("this transformers does not smooth over a step")
        options = {"bf16": False, "max_steps": 1, "label_smoothing_factor": smoothing, "router_aux_loss_coef": 0.5}
        logger = transformers.utils.logging.get_logger("nopad.training.trl")
        logger.addHandler(caplog.handler)
        try:
            trainer = watched(PackedSFTTrainer)(
                mixture(),
                arguments(tmp_path, trl.SFTConfig, **options),
                train_dataset=loader(),
                eval_dataset=loader(),
                quiet=True,
                processing_class=copy.deepcopy(_words()),
            )
        finally:
            logger.removeHandler(caplog.handler)
        trainer.train()
        tokens, _, balances = first_step()
        if smoothing:
            assert "TRL leaves out the loss that balances experts" in caplog.text
            model, batches = mixture().train(), [batch for _, batch in zip(range(2), loader(), strict=False)]
            objective = OfTokens(causal=True, smoothing=smoothing)
            model.config.output_router_logits = False
            whole = sum(objective.denominator(batch) for batch in batches)
            wanted = sum(objective.step(model, batch, whole)[0].item() for batch in batches)
        else:
            assert "averaged over the micro-batches of a step and over ranks" in caplog.text
            wanted = tokens + 0.5 * sum(balances) / len(balances)
        assert trainer.losses[0] == pytest.approx(wanted, rel=1e-5)


def _words():
    from tests.tasks.tiny import tokenizer

    return tokenizer()


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_says_it_before_it_loads_weights(tmp_path, asked):
    config = transformers.MixtralConfig(vocab_size=len(_words()), **SIZES | EXPERTS)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "model")
    _words().save_pretrained(tmp_path / "model")
    (tmp_path / "texts.jsonl").write_text('{"text": "the cat sleeps in the house"}\n' * 20)
    (tmp_path / "config.toml").write_text(f"""
        [model]
        name = "{tmp_path}/model"
        config = {{ output_router_logits = {str(asked).lower()} }}
        [data]
        train = "{tmp_path}/texts.jsonl"
        [task]
        name = "causal"
        [packing]
        capacity = 64
        rows = 2
        [trainer]
        use_cpu = true
        [output]
        folder = "{tmp_path}/out"
        """)
    said = str(prepare(read_config(tmp_path / "config.toml"), tmp_path / "cache"))
    assert ("experts  0.5 times the loss that balances them" in said) == asked
