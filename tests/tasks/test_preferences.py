"""Pairs: rewards and DPO. Packs change no loss, gradient or metric; TRL gives the same numbers; halves are refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.tasks import templates
from tests.tasks.equality import check_equal, jointly, packed
from tests.tasks.templates import chat, tokenizer
from tests.tasks.tiny import bert, llama, words
from torch.nn.functional import logsigmoid

import nopad
from nopad.errors import BatchError, LengthError, OptionError, RecordError
from nopad.tasks import DPO, Pairs, reference_logprobs

COUNT = 9


def strings(seed=0, prompt=True):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 15, (COUNT, 3), generator=generator).tolist()
    made = [
        {name: " " + words(generator, size) for name, size in zip(("prompt", "chosen", "rejected"), one, strict=True)}
        for one in sizes
    ]
    return made if prompt else [{name: one[name] for name in ("chosen", "rejected")} for one in made]


def chats(seed=0):
    return [{name: chat(one["prompt"], one[name]) for name in ("chosen", "rejected")} for one in strings(seed)]


def per_token(examples, number, logits):
    """Log-probabilities of what is labelled."""
    begin = int(examples.sequences.begins[number])
    labels = examples.sequences.tokens["labels"][begin : begin + logits.shape[1]]
    each = torch.log_softmax(logits[0], -1)
    return torch.stack([each[at - 1, int(labels[at])] for at in range(1, len(labels)) if labels[at] != -100])


class TestReward:
    @pytest.mark.parametrize("build", [bert, llama])
    @pytest.mark.parametrize("center", [None, 0.3])
    def test_packs_change_neither_loss_nor_gradients_nor_metrics(self, build, center):
        task = Pairs(tokenizer(), center_rewards_coefficient=center)
        records = [one | {"margin": at / 4 - 1} for at, one in enumerate(strings())]
        examples, model, found = task.encode(records), build(task), []

        def loss(outputs):
            rewards = torch.cat([one.logits[:, 0] for one in outputs])
            chosen, rejected = rewards[::2], rewards[1::2]
            margin = torch.tensor([one["margin"] for one in records])
            found.extend(
                [(chosen > rejected).double().mean(), (chosen - rejected).mean(), chosen.mean(), rejected.mean()]
            )
            # As in TRL's RewardTrainer.compute_loss
            total = -logsigmoid(chosen - rejected - margin).mean()
            return total + (center or 0) * ((chosen + rejected) ** 2).mean()

        alone = jointly(model, examples, loss)
        for world_size in (1, 2):
            value, gradients, meter = packed(model, task, examples, 70, world_size=world_size)
            check_equal(alone, (value, gradients))
            names = ("accuracy", "margin", "chosen_reward", "rejected_reward")
            wanted = dict(zip(names, map(torch.Tensor.item, found), strict=True))
            assert meter.values() == pytest.approx(wanted, rel=1e-12)

    @pytest.mark.parametrize("options", [{"sequences": 4}, {"tokens": 90}, {"rows": 2, "capacity": 70}])
    def test_however_pairs_are_dealt(self, options):
        task = Pairs(tokenizer())
        examples, model = task.encode(strings()), bert(task)

        def loss(outputs):
            rewards = torch.cat([one.logits[:, 0] for one in outputs])
            return -logsigmoid(rewards[::2] - rewards[1::2]).mean()

        alone = jointly(model, examples, loss)
        options = {"capacity": None, "rows": None} | options
        check_equal(alone, packed(model, task, examples, world_size=2, **options)[:2])

    def test_sequences(self):
        task = Pairs(tokenizer())
        made = task.encode([{"prompt": "is it", "chosen": " yes", "rejected": " no no"}])
        wanted = [tokenizer()("is it yes")["input_ids"], tokenizer()("is it no no")["input_ids"]]
        assert made.sequences.tokens["input_ids"].tolist() == [*wanted[0], *wanted[1]]
        assert {name: column.tolist() for name, column in made.sequences.values.items()} == {
            "pair": [0, 0],
            "chosen": [1, 0],
            "margin": [0.0, 0.0],
        }
        made = task.encode([{"prompt": chat("is it"), "chosen": chat("", "yes")[1:], "rejected": chat("", "no")[1:]}])
        text = tokenizer().convert_ids_to_tokens(made.sequences.tokens["input_ids"])
        assert " ".join(text) == (
            "<|user|> is it [EOS] <|assistant|> yes [EOS] <|user|> is it [EOS] <|assistant|> no [EOS]"
        )

    def test_what_is_too_long(self):
        records = [{"chosen": "yes", "rejected": "one two three four"}, {"chosen": "why", "rejected": "no"}]
        made = Pairs(tokenizer(), max_length=5, over_long="drop").encode(records)
        assert (made.counts, made.record.tolist(), made.sequences.values["pair"].tolist()) == (
            {"dropped": 1},
            [1, 1],
            [1, 1],
        )
        made = Pairs(tokenizer(), max_length=5, over_long="truncate").encode(records)
        assert made.counts == {"truncated": 1}
        ids = made.sequences.tokens["input_ids"][3:8]
        assert tokenizer().convert_ids_to_tokens(ids) == ["[CLS]", "one", "two", "three", "[SEP]"]
        with pytest.raises(LengthError, match="record 0 has 6 tokens, and max_length is 5"):
            Pairs(tokenizer(), max_length=5).encode(records)

    def test_predictions(self):
        task = Pairs(tokenizer())
        made = task.encode(strings(), labels=False)
        assert made.group == 2
        merged = task.merged([{"reward": float(n)} for n in range(2 * COUNT)], made)
        assert merged[1] == {"chosen": 2.0, "rejected": 3.0, "margin": -1.0}
        single = task.encode([{"text": "is it"}, {"messages": chat("is it", "no")}], labels=False)
        assert (single.group, single.sequences.values) == (1, {})
        assert task.merged([{"reward": 1.0}, {"reward": 2.0}], single) == [{"reward": 1.0}, {"reward": 2.0}]
        batch = nopad.PackedBatch.from_columns(single.sequences)
        found = task.results(nopad.packed(bert(task))(**batch), batch)
        assert [set(one) for one in found] == [{"reward"}] * 2
        with pytest.raises(RecordError, match="some records are pairs"):
            task.encode([{"text": "is it"}, *strings()], labels=False)

    def test_bad_pairs_are_refused(self):
        task = Pairs(tokenizer())
        good = {"chosen": "yes", "rejected": "no"}
        for record, told in (
            ({"chosen": "yes"}, "record 1 has no rejected, only chosen"),
            ({"chosen": None, "rejected": "no"}, "record 1 has no chosen"),
            ({"chosen": "yes", "rejected": chat("is it")}, "a string and a chat"),
            ({"prompt": chat("is it"), **good}, "prompt is a list and chosen is a str"),
            ({"prompt": "why", "chosen": "yes", "rejected": ""}, "rejected is empty"),
            ({"chosen": "yes", "rejected": " "}, "a text without any token"),
            ({**good, "margin": float("nan")}, "margin is nan"),
            ({**good, "margin": "1"}, "margin is '1'"),
        ):
            with pytest.raises(RecordError, match=told):
                task.encode([good, record])
        for value in (-1.0, float("inf"), "1", True, False, ""):
            with pytest.raises(OptionError, match="center_rewards_coefficient is"):
                Pairs(tokenizer(), center_rewards_coefficient=value)

    def test_a_model_of_several_labels_is_refused(self):
        task = Pairs(tokenizer())
        model = nopad.packed(bert(task, num_labels=2))
        batch = next(iter(task.loader(strings(), 90, rows=1)))
        with pytest.raises(BatchError, match="num_labels=1"):
            task.objective.step(model, batch)


class TestPairing:
    def made(self, pair, chosen, margin=None):
        columns = {"pair": pair, "chosen": chosen, "margin": margin or [0.0] * len(pair)}
        return nopad.PackedBatch.from_sequences([[5 + at, 6] for at in range(len(pair))], columns=columns)

    @pytest.mark.parametrize(
        ("pair", "chosen", "words"),
        [
            ([1, 1, 2], [1, 0, 1], "the chosen answer of pair 2 is in the batch, and the rejected one is not"),
            ([1, 2], [0, 0], "the rejected answer of pair 1"),
            ([1, 1], [1, 1], "two chosen answers of a batch have the pair number 1"),
            ([1, 1, 1, 1], [1, 0, 1, 0], "encode the records of several sets as one list"),
            ([1, 1], [1, 2], r"chosen\[1\] is 2"),
        ],
    )
    def test_half_a_pair_is_refused(self, pair, chosen, words):
        batch = self.made(pair, chosen)
        with pytest.raises(BatchError, match=words):
            Pairs(tokenizer()).objective.count(batch)

    def test_where_they_lie_does_not_matter(self):
        objective = Pairs(tokenizer()).objective
        one = self.made([3, 3, 9, 9], [1, 0, 1, 0], [0.5, 0.5, 1.0, 1.0])
        other = self.made([9, 3, 3, 9], [0, 1, 0, 1], [1.0, 0.5, 0.5, 1.0])
        first, second = torch.tensor([[1.0], [2.0], [3.0], [5.0]]), torch.tensor([[5.0], [1.0], [2.0], [3.0]])
        two = torch.tensor(2.0, dtype=torch.double)
        losses = [objective.loss({"logits": each}, batch, two) for each, batch in ((first, one), (second, other))]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)

    def test_a_loader_without_groups_is_told(self):
        task = Pairs(tokenizer())
        loader = nopad.PackedLoader(task.encode(strings()).sequences, sequences=3, seed=1)
        with pytest.raises(BatchError, match="groups=2"):
            sum(map(task.objective.count, loader))


def referenced(task, records, seed=1):
    """Examples with the log-probabilities of another model, and these by pair."""
    model = llama(task)
    torch.manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.randn_like(one) * 0.05)
    plain = task.encode(records)
    alone = []
    jointly(model, plain, lambda outputs: alone.extend(outputs) or outputs[0].logits.sum())
    wanted = [per_token(plain, at, one.logits).sum().item() for at, one in enumerate(alone)]
    nopad.packed(model)
    examples = reference_logprobs(model, plain, 80, rows=2)
    nopad.unpacked(model)
    return examples, torch.tensor(wanted, dtype=torch.double), model


class TestDPO:
    @pytest.mark.parametrize("form", [strings, chats])
    @pytest.mark.parametrize(("kind", "smoothing"), [("sigmoid", 0.0), ("sigmoid", 0.2), ("robust", 0.1), ("ipo", 0.0)])
    def test_packs_change_neither_loss_nor_gradients_nor_metrics(self, kind, smoothing, form):
        task = DPO(tokenizer(), beta=0.3, loss_type=kind, label_smoothing=smoothing)
        examples, reference, _ = referenced(task, form())
        model, found = llama(task), []

        def loss(outputs):
            parts = [per_token(examples, at, one.logits) for at, one in enumerate(outputs)]
            moved = torch.stack([one.sum() for one in parts]) - reference
            counts = torch.tensor([len(one) for one in parts])
            chosen, rejected = moved[::2], moved[1::2]
            apart = 0.3 * (chosen - rejected)
            rewards = (0.3 * chosen).mean(), (0.3 * rejected).mean(), (apart > 0).double().mean(), apart.mean()
            found.extend(one.item() for one in rewards)
            if kind == "ipo":
                return ((chosen / counts[::2] - rejected / counts[1::2] - 1 / 0.6) ** 2).mean()
            right, flipped = -logsigmoid(apart), -logsigmoid(-apart)
            if kind == "robust":
                return ((0.9 * right - 0.1 * flipped) / 0.8).mean()
            return ((1 - smoothing) * right + smoothing * flipped).mean()

        alone = jointly(model, examples, loss)
        for world_size in (1, 2):
            value, gradients, meter = packed(model, task, examples, 80, world_size=world_size)
            check_equal(alone, (value, gradients))
            names = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
            assert meter.values() == pytest.approx(dict(zip(names, found, strict=True)), rel=1e-11)

    def test_references_are_those_of_single_sequences_in_order(self):
        examples, wanted, model = referenced(DPO(tokenizer()), strings())
        found = examples.sequences.values["reference_logp"]
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)
        assert model.training
        assert all(one.grad is None or not one.grad.isnan().any() for one in model.parameters())

    def test_all_ranks_take_one_value_where_their_hardware_rounds_otherwise(self, monkeypatch):
        from nopad.tasks import reference

        task = DPO(tokenizer())
        made, model = task.encode(strings()), nopad.packed(llama(task))
        packs = len(nopad.pack(made.sequences.seq_lengths, 60))
        ranks = next(number for number in (2, 3, 5) if packs % number)  # some ranks run the same packs
        scored, parts, rank = reference._scored, [], 0
        monkeypatch.setattr(reference, "_scored", lambda *given: scored(*given) + rank * 1e-9)
        monkeypatch.setattr(reference, "_place", lambda: (rank, ranks))
        monkeypatch.setattr(reference, "over_all_ranks", lambda mine: parts.append(mine) or [mine, np.zeros_like(mine)])
        for rank in range(ranks):  # noqa: B007, as the lambdas read it
            reference_logprobs(model, made, 60)
        monkeypatch.setattr(reference, "over_all_ranks", lambda mine: parts)
        found = []
        for rank in range(ranks):  # noqa: B007, as the lambdas read it
            examples = reference_logprobs(model, made, 60)
            found.append(examples.sequences.values["reference_logp"].tobytes())
        assert found == found[:1] * ranks

    def test_nothing_is_dropped_out_of_a_reference(self):
        task = DPO(tokenizer())
        model = nopad.packed(llama(task, attention_dropout=0.5))
        model.model.layers[0].eval()
        made = task.encode(strings())
        first, second = (reference_logprobs(model, made, 100).sequences.values["reference_logp"] for _ in range(2))
        assert first.tolist() == second.tolist()
        assert model.training
        assert not model.model.layers[0].training

    def test_of_no_pairs_there_are_none(self):
        task = DPO(tokenizer(), max_length=2, over_long="drop")
        found = reference_logprobs(nopad.packed(llama(task)), task.encode(strings()))
        assert found.sequences.values["reference_logp"].shape == (0,)

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_ranks_share_the_references(self, ranks, monkeypatch):
        from nopad.tasks import reference

        task = DPO(tokenizer())
        made, model = task.encode(strings()), nopad.packed(llama(task))
        wanted = reference_logprobs(model, made, 60).sequences.values["reference_logp"]
        parts, steps = [], []
        scored = reference._scored
        monkeypatch.setattr(reference, "_scored", lambda *given: steps.append(1) or scored(*given))
        monkeypatch.setattr(reference, "over_all_ranks", lambda mine: parts.append(mine) or [mine, np.zeros_like(mine)])
        for rank in range(ranks):
            monkeypatch.setattr(reference, "_place", lambda rank=rank: (rank, ranks))
            steps.clear()
            reference_logprobs(model, made, 60)
            assert len(steps) == -(-len(nopad.pack(made.sequences.seq_lengths, 60)) // ranks)
        found = np.nanmax(parts, axis=0)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert not np.isnan(found).any()

    def test_results(self):
        task = DPO(tokenizer(), beta=0.5)
        examples, reference, model = referenced(task, strings())
        batch = nopad.loading.causal(examples.sequences, nopad.Flat(), np.array([len(examples)]))
        nopad.packed(model)
        found = task.results(task.objective.outputs(model, batch), batch)
        assert [one["logprob"] for one in found] == pytest.approx(reference.tolist(), rel=1e-12)
        assert [one["reward"] for one in found] == pytest.approx([0.0] * len(found), abs=1e-9)
        merged = task.merged(found, examples)
        assert (len(merged), merged[0]["rejected"]) == (COUNT, found[1])

    def test_only_answers_count(self):
        record = {"chosen": chat("is it", "no", "why", "so yes"), "rejected": chat("is it", "no", "why", "red")}
        made = DPO(tokenizer()).encode([record])
        labels = [label for label in made.sequences.tokens["labels"] if label != -100]
        assert tokenizer().convert_ids_to_tokens(labels) == ["[UNK]", "yes", "[EOS]", "red", "[EOS]"]
        # What a template drops of the prompt's turns is dropped of the prompt that the model will see, too.
        thought = [chat("is it", "yes when no", "why", answer) for answer in ("blue", "red")]
        made = DPO(tokenizer(templates.REWRITING)).encode([dict(zip(("chosen", "rejected"), thought, strict=True))])
        assert "when" not in tokenizer().decode(made.sequences.tokens["input_ids"])

    def test_pairs_are_cut_and_dropped_together(self):
        records = [
            {"prompt": "is it", "chosen": " yes", "rejected": " one two three four five"},
            {"prompt": "one two three four five", "chosen": " yes", "rejected": " no"},
        ]
        made = DPO(tokenizer(), max_length=6, over_long="truncate").encode(records)
        assert (made.counts, made.record.tolist()) == ({"truncated": 1, "dropped": 1}, [0, 0])
        assert DPO(tokenizer(), max_length=8, over_long="drop").encode(records).counts == {"dropped": 1}

    def test_bad_input_is_refused(self):
        task = DPO(tokenizer())
        with pytest.raises(RecordError, match="record 0 has no prompt, and chosen and rejected are strings"):
            task.encode(strings(prompt=False))
        with pytest.raises(RecordError, match="record 0 has no assistant's turn in its completion"):
            task.encode([{"chosen": chat("is it", "no"), "rejected": [*chat("is it"), *chat("why")]}])
        batch = next(iter(task.loader(strings(), 90, rows=1)))
        model = llama(task)
        with pytest.raises(BatchError, match=r"has no reference_logp.*reference_logprobs"):
            task.objective.step(nopad.packed(model), batch)
        nopad.unpacked(model)
        with pytest.raises(OptionError):
            reference_logprobs(model, task.encode(strings()), 90)
        with pytest.raises(LengthError):
            reference_logprobs(nopad.packed(model), task.encode(strings()), 5)
        with pytest.raises(OptionError, match="have no labels"):
            reference_logprobs(model, Pairs(tokenizer()).encode(strings()), 90)
        with torch.no_grad():
            model.lm_head.weight[3] = float("nan")
        with pytest.raises(BatchError, match="the model gives nan for sequence 0"):
            reference_logprobs(model, task.encode(strings()), 90)
        for options, told in (
            ({"beta": 0}, "beta is 0; it is a number above 0"),
            ({"loss_type": "hinge"}, "loss_type is 'hinge'; it is 'sigmoid', 'ipo' or 'robust'"),
            ({"label_smoothing": 0.5}, "label_smoothing is 0.5"),
            ({"loss_type": "ipo", "label_smoothing": 0.1}, "not for loss_type 'ipo'"),
        ):
            with pytest.raises(OptionError, match=told):
                DPO(tokenizer(), **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "smoothing"), [("sigmoid", 0.0), ("ipo", 0.0), ("robust", 0.2)])
def test_trl_gives_the_same_dpo(kind, smoothing, tmp_path):
    trl = pytest.importorskip("trl")
    import datasets

    task = DPO(tokenizer(), beta=0.3, loss_type=kind, label_smoothing=smoothing)
    records = chats()
    examples, _, reference = referenced(task, records)
    model = llama(task)
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path),
        beta=0.3,
        loss_type=[kind],
        label_smoothing=smoothing,
        per_device_train_batch_size=COUNT,
        max_length=None,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    made = tokenizer.__wrapped__()
    data = datasets.Dataset.from_list(records)
    value, _, meter = packed(model, task, examples, 80)
    trainer = trl.DPOTrainer(model, reference, arguments, train_dataset=data, processing_class=made)
    batch = trainer.data_collator([trainer.train_dataset[at] for at in range(COUNT)])
    # TRL's kernels are in float32; the rest of its loss is in whatever they give.
    loss = trainer.compute_loss(trainer.model, dict(batch))
    assert value == pytest.approx(loss.item(), rel=1e-6)
    trainer.precompute_ref_logps = True
    columns = ("ref_chosen_logps", "ref_rejected_logps")
    numbers = examples.sequences.values["reference_logp"]
    given = dict(batch) | {name: torch.from_numpy(numbers[at::2]) for at, name in enumerate(columns)}
    exact = trainer.compute_loss(InFloat64(llama(task)), given)
    assert value == pytest.approx(exact.item(), rel=1e-12)
    for name, number in meter.values().items():
        assert trainer._metrics["train"][name][-1] == pytest.approx(number, rel=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("center", [None, 0.25])
def test_trl_gives_the_same_rewards(center, tmp_path):
    trl = pytest.importorskip("trl")
    import datasets

    task = Pairs(tokenizer(), center_rewards_coefficient=center)
    records = [one | {"margin": at / 4 - 1} for at, one in enumerate(chats())]
    examples, model = task.encode(records), llama(task)
    value, _, meter = packed(model, task, examples, 80)
    arguments = trl.RewardConfig(
        output_dir=str(tmp_path),
        center_rewards_coefficient=center,
        max_length=None,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_dropout=False,
    )
    data = datasets.Dataset.from_list(records)
    trainer = trl.RewardTrainer(model, arguments, train_dataset=data, processing_class=tokenizer.__wrapped__())
    rows = [trainer.train_dataset[at] for at in range(COUNT)]
    theirs = [token for row in rows for name in ("chosen_ids", "rejected_ids") for token in row[name]]
    assert examples.sequences.tokens["input_ids"].tolist() == theirs
    loss = trainer.compute_loss(trainer.model, dict(trainer.data_collator(rows)))
    assert value == pytest.approx(loss.item(), rel=1e-12)
    assert meter.values()["accuracy"] == pytest.approx(trainer._metrics["train"]["accuracy"][-1])
    assert meter.values()["margin"] == pytest.approx(trainer._metrics["train"]["margin"][-1], rel=1e-12)


class InFloat64:
    """What TRL's patched model gives, in float64."""

    def __init__(self, model):
        self.model = model

    def __call__(self, input_ids, attention_mask, labels, **_):
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1]
        wanted = labels[:, 1:]
        each = torch.log_softmax(logits, -1).gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
        unread = torch.zeros_like(each)
        return SimpleNamespace(
            log_probs=each * (wanted != -100), entropy=unread, mean_logits=unread, is_top1=unread.bool()
        )
