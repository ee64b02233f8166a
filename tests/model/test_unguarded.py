"""A batch without its attention_mask: an error at the call of a pack-safe model too."""

from __future__ import annotations

import pickle

import pytest
import torch
import transformers as t
from zoo import CONFIGS, FORMS, build

import nopad
from nopad.errors import BatchError, NopadError
from nopad.model import static_inputs


@pytest.fixture(params=list(FORMS))
def batch(request, sequences):
    return nopad.PackedBatch.from_sequences(sequences, **FORMS[request.param])


def test_the_mask_is_not_taken_out(batch):
    with pytest.raises(BatchError, match="the attention_mask of a packed batch says where its sequences end"):
        batch.pop("attention_mask")
    with pytest.raises(BatchError, match="as_flash_kwargs"):
        del batch["attention_mask"]
    with pytest.raises(BatchError):
        batch.clear()
    assert "attention_mask" in batch
    with pytest.raises(KeyError):
        batch.pop("nothing")
    assert batch.pop("nothing", 1) == 1


def test_nor_that_of_the_targets(sequences):
    batch = nopad.PackedBatch.from_sequences(sequences).with_decoder(sequences, 2)
    with pytest.raises(BatchError, match="the decoder_attention_mask of a packed batch"):
        del batch["decoder_attention_mask"]


@pytest.mark.parametrize("kind", ["bert", "llama", "deberta"])
@pytest.mark.parametrize(
    "names", [["input_ids"], ["input_ids", "position_ids"], ["position_ids"]], ids=lambda names: " ".join(names)
)
def test_its_tensors_without_it(kind, names, batch, sequences):
    model = nopad.packed(build(kind))
    inputs = {"input_ids": torch.zeros(batch.layout.shape, dtype=torch.long), **{name: batch[name] for name in names}}
    with pytest.raises(BatchError, match=f"{names[0]} is of a packed batch, and its attention_mask is not there"):
        model(**inputs)
    with torch.no_grad():  # and the model runs on
        found = batch.unpack_tokens(model(**batch).last_hidden_state)[2]
        wanted = model(input_ids=sequences[2][None]).last_hidden_state[0]
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_with_a_mask_of_ones_own(batch):
    model = nopad.packed(build("bert"))
    ones = torch.ones(batch.layout.shape, dtype=torch.long)
    with pytest.raises(BatchError, match="input_ids is of a packed batch, and its attention_mask is not there"):
        model(input_ids=batch["input_ids"], attention_mask=ones)


@pytest.mark.parametrize("way", ["moved", "pickled", "torch"])
def test_however_the_batch_came(way, sequences):
    batch = nopad.PackedBatch.from_sequences(sequences)
    if way == "moved":
        batch = batch.to("cpu")
    elif way == "pickled":
        batch = pickle.loads(pickle.dumps(batch))
    else:
        batch["input_ids"] = torch.cat(sequences)[None]
    with pytest.raises(BatchError, match="input_ids is of a packed batch"):
        nopad.packed(build("bert"))(input_ids=batch["input_ids"])


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_positions_that_begin_again(kind, sequences):
    model = nopad.packed(build(kind))
    ids = torch.cat(sequences)[None]
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])[None]
    with pytest.raises(BatchError, match="position_ids begin again inside a row and attention_mask does not"):
        model(input_ids=ids, position_ids=positions)
    with pytest.raises(BatchError, match="position_ids begin again"):
        model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids))
    with pytest.raises(BatchError, match="position_ids begin again"):
        model(input_ids=ids[:, :3], position_ids=torch.zeros(1, 3, dtype=torch.long))


def test_features_for_flash_attention_on_a_pack_safe_model(sequences):
    batch = nopad.PackedBatch.from_sequences(sequences)
    model = nopad.packed(build("llama"))
    with pytest.raises(BatchError, match="input_ids is of a packed batch"):
        model(**batch.as_flash_kwargs())


def test_ids_of_a_decoder(sequences):
    model = nopad.packed(t.BartModel(CONFIGS["bart"]()).double().eval())
    batch = nopad.PackedBatch.from_sequences(sequences).with_decoder(sequences, 2)
    with pytest.raises(BatchError, match="decoder_input_ids is of a packed batch"):
        model(input_ids=sequences[0][None], decoder_input_ids=batch["decoder_input_ids"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model(sequences):
    import torch._dynamo

    torch._dynamo.reset()
    model = nopad.packed(build("bert"))
    compiled = torch.compile(model, backend="eager")
    batch = nopad.PackedBatch.from_sequences(sequences[:4])
    with pytest.raises(BatchError, match="input_ids is of a packed batch"):
        compiled(input_ids=batch["input_ids"])
    with torch.no_grad():
        ids = sequences[0][None]
        torch.testing.assert_close(compiled(ids).last_hidden_state, model(ids).last_hidden_state, atol=1e-12, rtol=0)


BEFORE = [[], ["ids"], ["plain", "ids"], ["plain"]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(
    ("kind", "before"),
    [
        *(("bert", before) for before in BEFORE),
        ("deberta", ["ids"]),
        *(pytest.param("deberta", before, marks=pytest.mark.soak) for before in BEFORE if before != ["ids"]),
        *(pytest.param("llama", before, marks=pytest.mark.soak) for before in BEFORE),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_batch_through_a_compiled_model(kind, before, sequences):
    """What raised once while compiling runs as it is afterwards, in part: right or refused, every time."""
    import torch._dynamo

    torch._dynamo.reset()
    stock, model = (build(kind, num_hidden_layers=1) for _ in range(2))  # compiling takes seconds a layer
    compiled = torch.compile(nopad.packed(model), backend="eager")
    batch = nopad.PackedBatch.from_sequences(sequences[:4])
    lengths = [len(sequence) for sequence in sequences[:4]]
    for way in before:
        if way == "plain":
            compiled(input_ids=sequences[0][None])
        else:
            with pytest.raises(BatchError, match="input_ids is of a packed batch"):
                compiled(input_ids=batch["input_ids"])
    for _ in range(2):
        try:
            found = compiled(**batch).last_hidden_state[0].split(lengths)
        except NopadError:
            continue
        for part, sequence in zip(found, sequences[:4], strict=True):
            torch.testing.assert_close(part, stock(input_ids=sequence[None]).last_hidden_state[0], atol=1e-12, rtol=0)
    ids = sequences[0][None]  # and an ordinary call is one again
    torch.testing.assert_close(model(ids).last_hidden_state, stock(ids).last_hidden_state, atol=1e-12, rtol=0)
    found = model(**batch).last_hidden_state[0].split(lengths)
    torch.testing.assert_close(found[0], stock(ids).last_hidden_state[0], atol=1e-12, rtol=0)


class TestOrdinaryCalls:
    @pytest.mark.parametrize("kind", ["bert", "roberta", "llama", "deberta"])
    def test_one_sequence_without_a_mask(self, kind, sequences):
        stock, model = build(kind), nopad.packed(build(kind))
        first = model.config.pad_token_id + 1 if kind == "roberta" else 0
        for sequence in sequences:
            ids = sequence[None]
            where = torch.arange(first, first + len(sequence))[None]
            for how in ({}, {"position_ids": where}, {"attention_mask": torch.ones_like(ids)}):
                with torch.no_grad():
                    assert torch.equal(
                        model(input_ids=ids, **how).last_hidden_state, stock(input_ids=ids, **how).last_hidden_state
                    )

    def test_a_batch_of_one_sequence_is_that_sequence(self, sequences):
        stock, model = build("bert"), nopad.packed(build("bert"))
        batch = nopad.PackedBatch.from_sequences(sequences[:1])
        with torch.no_grad():
            found = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).last_hidden_state
            assert torch.equal(found, stock(input_ids=sequences[0][None]).last_hidden_state)

    def test_a_padded_batch(self, sequences):
        stock, model = build("llama"), nopad.packed(build("llama"))
        ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(s) for s in sequences], batch_first=True)
        left, where = mask.flip(1), (mask.flip(1).cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            for inputs in (
                {"input_ids": ids, "attention_mask": mask},
                {"input_ids": ids.flip(1), "attention_mask": left, "position_ids": where},
            ):
                assert torch.equal(model(**inputs).last_hidden_state, stock(**inputs).last_hidden_state)

    def test_generation(self, sequences):
        stock, model = build("llama", "causal LM"), nopad.packed(build("llama", "causal LM"))
        how = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": 98}
        assert torch.equal(model.generate(sequences[0][None], **how), stock.generate(sequences[0][None], **how))

    def test_static_inputs(self, sequences):
        model = nopad.packed(build("bert"))
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
        real = batch.layout.sequence_ids > 0
        found = model(**static_inputs(model, batch)).last_hidden_state[real]
        torch.testing.assert_close(found, model(**batch).last_hidden_state[real], atol=1e-12, rtol=0)

    def test_a_stock_model_takes_them_as_ever(self, sequences):
        batch = nopad.PackedBatch.from_sequences(sequences[:4])
        assert build("bert")(input_ids=batch["input_ids"]).last_hidden_state.shape == (1, 50, 24)
