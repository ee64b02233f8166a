"""Predictions over packs: those of each record alone, in input order; what is left out is counted; threads share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.tasks.tiny import bert, llama, tokenizer, words

import nopad
from nopad.corpus import open_records
from nopad.errors import LengthError, OptionError, RecordError
from nopad.tasks import (
    Answers,
    CausalLM,
    Classification,
    Embedding,
    Predictor,
    Regression,
    SeveralLabels,
    Texts,
    predict,
)

COUNT = 75


def records(count=COUNT, most=30):
    generator = torch.Generator().manual_seed(1)
    return [{"text": words(generator, n)} for n in torch.randint(1, most, (count,), generator=generator).tolist()]


def alone(model, record, **options):
    """What the model gives for one text, as transformers runs it."""
    with torch.no_grad():
        return model.eval()(**tokenizer()(record["text"], return_tensors="pt"), **options)


def cases():
    names = ["bad", "fair", "good"]
    classify = Classification(tokenizer(), names)
    yield classify, bert(classify), lambda out: torch.softmax(out.logits[0], 0).tolist(), "probabilities"
    tag = SeveralLabels(tokenizer(), names)
    yield tag, bert(tag), lambda out: torch.sigmoid(out.logits[0]).tolist(), "probabilities"
    regress = Regression(tokenizer())
    yield regress, bert(regress), lambda out: out.logits[0, 0].item(), "score"


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("size", [{"batch_records": 7}, {"batch_records": 1000}, {"capacity": 40, "rows": 2}])
def test_predictions_are_those_of_each_record_alone(which, size):
    task, model, wanted, name = list(cases())[which]
    given = records()
    judged = [wanted(alone(model, record)) for record in given]
    found = predict(task, model, given, **size)
    predictions = list(found)
    np.testing.assert_allclose([one[name] for one in predictions], judged, atol=1e-12)
    assert (found.records, found.sequences, dict(found.counts)) == (COUNT, COUNT, {})
    assert found.tokens == sum(len(tokenizer()(one["text"])["input_ids"]) for one in given)


@pytest.mark.parametrize("form", [nopad.Flat(), nopad.Rows(64)])
def test_every_form_gives_the_same(form):
    task, model, wanted, name = next(cases())
    judged = [wanted(alone(model, record)) for record in records()]
    found = Predictor(task, model, capacity=64, form=form)(records())
    np.testing.assert_allclose([one[name] for one in found], judged, atol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_embeddings(pooling):
    task = Embedding(tokenizer(), pooling=pooling, normalize=pooling != "last")
    model = bert(task, "BertModel")
    for record, found in zip(records(9), predict(task, model, records(9)), strict=True):
        states = alone(model, record).last_hidden_state[0]
        vector = {"mean": states.mean(0), "first": states[0], "last": states[-1]}[pooling]
        vector = vector / vector.norm() if pooling != "last" else vector
        np.testing.assert_allclose(found["embedding"], vector.tolist(), rtol=1e-5, atol=1e-6)


def test_prompts_are_put_before_texts_and_left_out_of_means():
    texts = Texts(prompts={"query": "what is "}, include_prompt=False)
    task = Embedding(tokenizer(), texts=texts, prompt_name="query", normalize=False)
    model = bert(task, "BertModel")
    [found] = predict(task, model, [{"text": "red house"}])
    states = alone(model, {"text": "what is red house"}).last_hidden_state[0]
    np.testing.assert_allclose(found["embedding"], states[3:].mean(0).tolist(), rtol=1e-5)  # [CLS] what is
    whole = Embedding(tokenizer(), texts=Texts(prompts=texts.prompts), prompt_name="query", normalize=False)
    [found] = predict(whole, model, [{"text": "red house"}])
    np.testing.assert_allclose(found["embedding"], states.mean(0).tolist(), rtol=1e-5)
    with pytest.raises(OptionError, match="no prompt named 'passage'"):
        Embedding(tokenizer(), texts=texts, prompt_name="passage")
    with pytest.raises(OptionError, match="train embeddings with"):
        task.objective.step(model, nopad.PackedBatch.from_sequences([[1, 2]]))


def test_log_probabilities():
    task = CausalLM(tokenizer())
    model = llama(task, "LlamaForCausalLM")
    for record, found in zip(records(9), predict(task, model, records(9), batch_records=4), strict=True):
        words = tokenizer()(record["text"], add_special_tokens=False)["input_ids"]
        around = [tokenizer().cls_token_id], [tokenizer().eos_token_id]
        ids = torch.tensor([around[0] + words + around[1]])
        logits = model.eval()(input_ids=ids).logits[0]
        each = [torch.log_softmax(logits[at], 0)[ids[0, at + 1]].item() for at in range(ids.shape[1] - 1)]
        assert found["logprob"] == pytest.approx(sum(each), abs=1e-9)
        assert found["tokens"] == len(each)


@pytest.mark.parametrize("over_long", ["truncate", "drop"])
def test_what_is_too_long_is_counted_over_all_chunks(over_long):
    task = Regression(tokenizer(), max_length=12, over_long=over_long)
    model, given = bert(task), records()
    long = [len(tokenizer()(one["text"])["input_ids"]) > 12 for one in given]
    found = predict(task, model, given, batch_records=4)
    predictions = list(found)
    assert dict(found.counts) == {"truncated" if over_long == "truncate" else "dropped": sum(long)}
    left_out = [one is None for one in predictions]
    assert left_out == (long if over_long == "drop" else [False] * COUNT)
    assert found.sequences == COUNT - sum(left_out)


def test_a_chunk_of_which_nothing_is_left():
    task = Regression(tokenizer(), max_length=3, over_long="drop")
    found = predict(task, bert(task), [{"text": "one two"}, {"text": "a b c"}], batch_records=1)
    assert list(found) == [None, None]
    assert (dict(found.counts), found.sequences) == ({"dropped": 2}, 0)


def test_none_and_one():
    task = Regression(tokenizer())
    predictor = Predictor(task, bert(task))
    assert (predictor([]), list(predict(task, predictor.model, []))) == ([], [])
    [one] = predictor([{"text": "why"}])
    assert one["score"] == pytest.approx(alone(predictor.model, {"text": "why"}).logits.item(), abs=1e-12)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_errors_name_the_record_in_the_whole_input(size):
    task = Regression(tokenizer(), max_length=8)
    model = bert(task)
    given = [{"text": "why"}] * 5 + [{"text": "a " * 9}]
    with pytest.raises(LengthError, match=r"^record 5 has 11 tokens"):
        list(predict(task, model, given, batch_records=size))
    given[5] = {"title": "why"}
    found = predict(task, model, given, batch_records=size)
    with pytest.raises(RecordError, match=r"^record 5 has no 'text'"):
        list(found)
    given[5] = {"text": "a " * 9}
    with pytest.raises(LengthError, match=r"^record 5 has a sequence of 11 tokens, and the capacity is 8"):
        list(predict(Regression(tokenizer()), model, given, batch_records=size, capacity=8))


def test_predictions_before_an_error_come_out():
    task = Regression(tokenizer())
    found = predict(task, bert(task), [{"text": "why"}] * 4 + [{}], batch_records=2)
    assert [next(found) is not None for _ in range(4)] == [True] * 4
    with pytest.raises(RecordError, match="record 4"):
        next(found)


def test_a_sequence_longer_than_the_usual_capacity_raises_it_to_the_positions():
    task = Regression(tokenizer())
    model = bert(task, max_position_embeddings=5000)
    predictor = Predictor(task, model)
    assert (predictor.capacity, predictor.rows) == (4096, 1)
    long = {"text": "a " * 4500}
    assert predictor([long])[0]["score"] == pytest.approx(alone(model, long).logits.item(), abs=1e-9)
    with pytest.raises(LengthError, match="and the model's positions are 5000"):
        predictor([{"text": "a " * 5001}])


def test_threads_share_a_predictor():
    task = Regression(tokenizer(), max_length=10, over_long="truncate")
    other = Regression(tokenizer())  # the same tokenizer, without truncation
    model = bert(task)
    predictors, parts = [Predictor(task, model), Predictor(other, model)], [records()[n : n + 9] for n in range(60)]
    wanted = [[predictor(part) for part in parts] for predictor in predictors]
    with ThreadPoolExecutor(4) as pool:
        jobs = [[pool.submit(predictor, part) for part in parts] for predictor in predictors]
        assert [[job.result() for job in row] for row in jobs] == wanted


def test_memory_is_bounded_by_a_chunk():
    pulled = 0

    def endless():
        nonlocal pulled
        while True:
            pulled += 1
            yield {"text": "why"}

    task = Regression(tokenizer())
    found = predict(task, bert(task), open_records(endless), batch_records=10)
    assert next(found) is not None
    assert pulled <= 1000  # a run of records


def test_a_model_in_training_mode_is_refused():
    task = Regression(tokenizer())
    predictor = Predictor(task, bert(task))
    predictor.model.bert.encoder.train()
    with pytest.raises(OptionError, match="in training mode"):
        predictor([{"text": "why"}])
    with pytest.raises(OptionError, match="the task is a str"):
        Predictor("classify", predictor.model)


@pytest.mark.parametrize("kind", [Regression, Embedding])
def test_nan_is_no_prediction(kind):
    task = kind(tokenizer())
    model = (
        llama(task, "LlamaForCausalLM") if kind is CausalLM else bert(task, "BertModel" if kind is Embedding else None)
    )
    word = tokenizer().convert_tokens_to_ids("red")
    with torch.no_grad():
        model.get_input_embeddings().weight[word] = float("nan")
    assert None not in list(predict(task, model, [{"text": "blue house"}]))
    given = [{"text": "blue house"}, {"text": "why"}, {"text": "a red house"}]
    for size in (1, 3):
        with pytest.raises(RecordError, match="record 2: the model gives NaN for it"):
            list(predict(task, model, given, batch_records=size))


@pytest.mark.parametrize("bad", [[(1, "start"), (0, "end")], [(1, "start")], [(0, "start"), (0, "end"), (1, "end")]])
def test_each_sequence_gets_its_own_error(bad, monkeypatch):
    """If all sequences had NaN, each in another output, one got the error of another."""
    task = Answers(tokenizer())
    predictor = Predictor(task, bert(task).eval())
    batch = nopad.PackedBatch.from_sequences([[5, 6], [7, 8, 9]])
    outputs = {f"{name}_logits": torch.zeros(2, 3) for name in ("start", "end")}
    for at, name in bad:
        outputs[f"{name}_logits"][at, 1] = float("nan")
    monkeypatch.setattr(task.objective, "outputs", lambda model, batch: outputs)
    monkeypatch.setattr(task, "results", lambda outputs, batch: ["answer"] * 2)
    wanted = [", ".join(f"{name}_logits" for one, name in bad if one == at) for at in range(2)]
    said = [f"the model gives NaN for this request, in {names}" if names else "answer" for names in wanted]
    assert list(map(str, predictor.results_of(batch, predictor.model))) == said


def test_examples_of_which_nothing_is_left_are_no_training_data():
    task = Regression(tokenizer(), max_length=3, over_long="drop")
    with pytest.raises(LengthError, match=r"nothing is left to train on: 1 record: 0 sequences, 0 tokens, 1 dropped"):
        task.loader([{"text": "a b c", "label": 1.0}], 16)
