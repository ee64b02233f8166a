from __future__ import annotations

import pytest
import torch
from tests.model.zoo import FORMS, build

import nopad
from nopad.errors import OptionError
from nopad.tasks import sequence_logprobs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mean", [False, True])
def test_log_probabilities_of_each_sequence(sequences, form, mean):
    model = build("llama", "causal LM")
    wanted = []
    with torch.no_grad():
        for ids in sequences:
            logs = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], dim=-1)
            total = logs.gather(-1, ids[1:, None]).sum()
            wanted.append(total / max(ids.numel() - 1, 1) if mean else total)
    nopad.packed(model)
    columns = {"labels": sequences}
    batch = nopad.PackedBatch.from_sequences(sequences, columns=columns, **FORMS[form])
    with torch.no_grad():
        found = sequence_logprobs(model, batch, mean=mean)
    torch.testing.assert_close(found, torch.stack(wanted), atol=1e-12, rtol=0)
    assert found[1] == 0


def test_other_models_predict_no_next_token():
    model = nopad.packed(build("bert", "masked LM"))
    with pytest.raises(OptionError, match="BertForMaskedLM is no causal language model"):
        sequence_logprobs(model, nopad.PackedBatch.from_sequences([[5, 6]]))
