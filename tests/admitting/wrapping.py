"""Modules of one's own around a model of transformers: those that a proof admits, and those that it refuses."""

from __future__ import annotations

import own
import torch
import transformers as t
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from transformers.modeling_outputs import TokenClassifierOutput


def mean(x):
    return x.mean(1, keepdim=True)


class Tagger(nn.Module):
    """A linear head; what comes between the states and the head is `between`."""

    base = t.BertModel

    def __init__(self, **sizes):
        super().__init__()
        self.encoder = self.base(own.bert_config(**sizes))
        self.head = nn.Linear(32, 3)
        self.build()

    def build(self):
        pass

    def states(self, input_ids, attention_mask):
        return self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state

    def between(self, states, input_ids, attention_mask):
        return states

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.states(input_ids, attention_mask)
        return self.head(self.between(states, input_ids, mask))


# Admitted


class Deep(Tagger):
    """An MLP with LayerNorm and dropout, also by the function."""

    def build(self):
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 32))

    def between(self, states, input_ids, attention_mask):
        return states + dropout(self.mlp(states), 0.2, self.training)


class Scaled(Tagger):
    """Reads the mask, each token by itself."""

    def between(self, states, input_ids, attention_mask):
        return states * attention_mask[..., None] + torch.where(input_ids[..., None] == 7, 1.0, 0.0)


class Widened(Tagger):
    """A convolution that reads one token."""

    def build(self):
        self.conv = nn.Conv1d(32, 32, 1)

    def between(self, states, input_ids, attention_mask):
        return self.conv(states.transpose(1, 2)).transpose(1, 2)


class Layers(Tagger):
    """A learned mix of all layers' states, and a second table of tokens."""

    def build(self):
        self.weights = nn.Parameter(torch.zeros(3))
        self.words = nn.Embedding(300, 32)

    def states(self, input_ids, attention_mask):
        found = self.encoder(input_ids, attention_mask=attention_mask, output_hidden_states=True)
        return (torch.stack(found.hidden_states) * self.weights.softmax(0).view(-1, 1, 1, 1)).sum(0)

    def between(self, states, input_ids, attention_mask):
        return states + self.words(input_ids)


class Placed(Tagger):
    """Positions of its own, which it takes from the batch."""

    def build(self):
        self.places = nn.Embedding(700, 32)

    def forward(self, input_ids, attention_mask=None, position_ids=None, token_type_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        states = self.encoder(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, token_type_ids=token_type_ids
        ).last_hidden_state
        return self.head(states + self.places(position_ids))


class Several(Tagger):
    """A dict with several results, nested, and whole numbers."""

    def forward(self, input_ids, attention_mask=None):
        states = self.states(input_ids, attention_mask)
        logits = self.head(states)
        return {
            "logits": logits,
            "best": logits.argmax(-1),
            "states": (states, [states * 2]),
            "none": None,
            "name": "a",
        }


class Trained(Tagger):
    """The mean cross entropy, as tutorials write it."""

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None):
        found = self.encoder(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        logits, loss = self.head(found[0]), None
        if labels is not None:
            active = torch.where(attention_mask.view(-1) == 1, labels.view(-1), torch.tensor(-100))
            loss = nn.CrossEntropyLoss()(logits.view(-1, 3), active)
        return TokenClassifierOutput(loss=loss, logits=logits)


class Shifted(Tagger):
    """A causal loss, which it returns first, in a tuple."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.states(input_ids, attention_mask))
        if labels is None:
            return (logits,)
        return cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:]), logits


class Summed(Shifted):
    """A loss that is no mean."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.states(input_ids, attention_mask))
        if labels is None:
            return (logits,)
        return cross_entropy(logits.transpose(1, 2), labels, reduction="sum"), logits


class Pooler(Tagger):
    """Classification of sequences, by the pooler of the model inside."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        pooled = self.encoder(input_ids, attention_mask=attention_mask).pooler_output
        logits = self.head(dropout(pooled, 0.1, self.training))
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


class Both(Tagger):
    """A result per token, and one per sequence."""

    def forward(self, input_ids, attention_mask=None):
        found = self.encoder(input_ids, attention_mask=attention_mask)
        return self.head(found.last_hidden_state), self.head(found.pooler_output)


class Doubled(Tagger):
    """Around a classifier of transformers."""

    base = t.BertForSequenceClassification

    def forward(self, input_ids, attention_mask=None):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).logits * 2


class Valued(nn.Module):
    """A value head as TRL builds them, on a decoder; it hands on whatever it gets."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        self.pretrained_model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=300, num_key_value_heads=2, **sizes))
        self.v_head = nn.Linear(32, 1)

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        found = self.pretrained_model(
            input_ids, attention_mask=attention_mask, output_hidden_states=True, use_cache=False, **kwargs
        )
        return found.logits, found.loss, self.v_head(found.hidden_states[-1]).squeeze(-1)


class Chained(nn.Module):
    """The model is in a module inside."""

    def __init__(self):
        super().__init__()
        self.backbone = Tagger()
        self.out = nn.Linear(3, 2)

    def forward(self, input_ids, attention_mask=None):
        return self.out(self.backbone(input_ids, attention_mask))


class Unmasked(Tagger):
    """Takes no mask, as for sequences that are never padded."""

    def forward(self, input_ids):
        return self.head(self.encoder(input_ids).last_hidden_state)


class Embedded(Tagger):
    """Makes the model's embeddings itself."""

    def forward(self, input_ids, attention_mask=None):
        words = self.encoder.get_input_embeddings()(input_ids) * 2
        return self.head(self.encoder(inputs_embeds=words, attention_mask=attention_mask).last_hidden_state)


class Unpacks(Tagger):
    """Of a model that returns tuples."""

    def build(self):
        self.encoder.config.return_dict = False

    def states(self, input_ids, attention_mask):
        states, _ = self.encoder(input_ids, attention_mask=attention_mask)
        return states


# Refused


class MeanPooled(Tagger):
    def forward(self, input_ids, attention_mask=None):
        states = self.states(input_ids, attention_mask)
        return self.head((states * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))


class First(Tagger):
    def forward(self, input_ids, attention_mask=None):
        return self.head(self.states(input_ids, attention_mask)[:, 0])


class Recurrent(Tagger):
    def build(self):
        self.lstm = nn.LSTM(32, 16, bidirectional=True, batch_first=True)

    def between(self, states, input_ids, attention_mask):
        return self.lstm(states)[0]


class Convolved(Tagger):
    def build(self):
        self.conv = nn.Conv1d(32, 32, 3, padding=1)

    def between(self, states, input_ids, attention_mask):
        return self.conv(states.transpose(1, 2)).transpose(1, 2)


class Normed(Tagger):
    def build(self):
        self.norm = nn.BatchNorm1d(32)

    def between(self, states, input_ids, attention_mask):
        return self.norm(states.transpose(1, 2)).transpose(1, 2)


class OwnNorm(nn.Module):
    """Statistics of the batch, in training only."""

    def forward(self, x):
        return x - 1e-6 * x.mean((0, 1)) if self.training else x


class OwnNormed(Tagger):
    def build(self):
        self.norm = OwnNorm()

    def between(self, states, input_ids, attention_mask):
        return self.norm(states)


class Attends(Tagger):
    def build(self):
        self.mix = nn.MultiheadAttention(32, 4, batch_first=True)

    def between(self, states, input_ids, attention_mask):
        return self.mix(states, states, states, key_padding_mask=attention_mask == 0)[0]


class Leaks(Tagger):
    def between(self, states, input_ids, attention_mask):
        return states + mean(states)


class ShutGate(Tagger):
    """Mixes where a row has the token 250, and a proof has none."""

    def between(self, states, input_ids, attention_mask):
        return torch.where((input_ids == 250).any(1)[:, None, None], states + mean(states), states)


class Looks(Tagger):
    def between(self, states, input_ids, attention_mask):
        return states + mean(states) if bool((input_ids == 250).any()) else states


class LooksAtMask(Tagger):
    """Decides by whether there is padding."""

    def between(self, states, input_ids, attention_mask):
        return states if bool(attention_mask.all()) else states * 2


class Counted(Tagger):
    """Scales by the number of tokens that the mask has."""

    def between(self, states, input_ids, attention_mask):
        return states / attention_mask.sum(1)[:, None, None]


class LongRows(Tagger):
    def between(self, states, input_ids, attention_mask):
        return states + mean(states) if states.shape[1] > 700 else states


class ManyRows(Tagger):
    def between(self, states, input_ids, attention_mask):
        return states * 2 if states.shape[0] > 8 else states


class Places(Tagger):
    """Counts along the row."""

    def between(self, states, input_ids, attention_mask):
        return states + 0.01 * torch.arange(states.shape[1])[None, :, None]


class Sliced(Tagger):
    """Leaves out the first token of a row."""

    def between(self, states, input_ids, attention_mask):
        return states[:, 1:]


class Neighbour(Tagger):
    """The token before each one goes into the model."""

    def states(self, input_ids, attention_mask):
        return super().states(input_ids.roll(1, 1), attention_mask)


class OwnMask(Tagger):
    """Builds a mask for pairs of tokens."""

    def states(self, input_ids, attention_mask):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        pairs = mask[:, None, None, :] * mask[:, None, :, None]
        return super().states(input_ids, torch.where(pairs == 1, 0.0, -1e9).to(self.head.weight.dtype))


class Twice(Tagger):
    def states(self, input_ids, attention_mask):
        return super().states(input_ids, attention_mask) + super().states(input_ids, attention_mask)


class TwoModels(Tagger):
    def build(self):
        self.other = t.BertModel(own.bert_config())


class Noise(Tagger):
    def between(self, states, input_ids, attention_mask):
        return states + torch.randn_like(states)


class NoiseInTraining(Tagger):
    def between(self, states, input_ids, attention_mask):
        return states + torch.randn_like(states) if self.training else states


class Keeps(Tagger):
    """Adds what it saw before."""

    def build(self):
        self.register_buffer("past", torch.zeros(32))

    def between(self, states, input_ids, attention_mask):
        self.past = states.detach().mean((0, 1))
        return states


class Parts(Tagger):
    """Runs parts of the model by itself."""

    def states(self, input_ids, attention_mask):
        return self.encoder.encoder(self.encoder.embeddings(input_ids))[0]


class PooledGate(Tagger):
    """Adds nothing of the row to a result per sequence."""

    def forward(self, input_ids, attention_mask=None):
        found = self.encoder(input_ids, attention_mask=attention_mask)
        return self.head(found.pooler_output + 0 * found.last_hidden_state.mean(1))


class OverBatch(Tagger):
    """Compares the sequences of a batch."""

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.encoder(input_ids, attention_mask=attention_mask).pooler_output).softmax(0)


class PooledToTokens(Tagger):
    """Gives each token what the pooler says of its row."""

    def forward(self, input_ids, attention_mask=None):
        found = self.encoder(input_ids, attention_mask=attention_mask)
        return self.head(found.last_hidden_state + found.pooler_output[:, None])


class Balanced(Tagger):
    """Adds a loss to what is learned, in training."""

    def between(self, states, input_ids, attention_mask):
        return own.AddedLoss.apply(states, 0.01 * self.head(states).softmax(-1).mean()) if self.training else states


class Named(Tagger):
    """Takes a batch by other names."""

    def forward(self, ids, mask):
        return super().forward(ids, mask)


class Result:
    def __init__(self, logits):
        self.logits = logits


class OwnResult(Tagger):
    def forward(self, input_ids, attention_mask=None):
        return Result(super().forward(input_ids, attention_mask))


class Always(Tagger):
    """Gives a number for the whole batch."""

    def forward(self, input_ids, attention_mask=None):
        logits = super().forward(input_ids, attention_mask)
        return {"logits": logits, "norm": logits.norm()}


class Backwards(torch.autograd.Function):
    """Mixes the gradients of tokens."""

    @staticmethod
    def forward(context, states):
        return states.clone()

    @staticmethod
    def backward(context, slope):
        return slope + mean(slope)


class OwnBackward(Tagger):
    """Mixes gradients, in training only."""

    def between(self, states, input_ids, attention_mask):
        return Backwards.apply(states) if self.training else states


class Same(Backwards):
    """Calls no function of PyTorch."""

    @staticmethod
    def forward(context, states):
        return states


class LongBackward(Tagger):
    """Mixes gradients of long rows."""

    def between(self, states, input_ids, attention_mask):
        return Same.apply(states) if states.shape[1] > 900 else states


class Hooked(Tagger):
    """Mixes gradients of long rows, by a hook."""

    def between(self, states, input_ids, attention_mask):
        states = states * 1
        if states.requires_grad:
            states.register_hook(lambda slope: slope + mean(slope) if slope.shape[1] > 900 else slope)
        return states


class RowsAsTime(Tagger):
    """A recurrent layer that goes along the rows of a batch."""

    def build(self):
        self.gru = nn.GRU(32, 32)

    def between(self, states, input_ids, attention_mask):
        return self.gru(states)[0]


class Deeper(Tagger):
    """Mixes where the model has more layers than a small copy."""

    def between(self, states, input_ids, attention_mask):
        return states + mean(states) if self.encoder.config.num_hidden_layers == 8 else states

    def __init__(self):
        super().__init__(num_hidden_layers=8)


class Called(Tagger):
    """What is called is no forward method."""

    def __call__(self, *args, **kwargs):
        return mean(super().__call__(*args, **kwargs))


class Capacity(Tagger):
    def build(self):
        self.expert_capacity = 64


ADMITTED = [
    *(
        Tagger,
        Deep,
        Scaled,
        Widened,
        Layers,
        Placed,
        Several,
        Trained,
        Shifted,
        Summed,
        Chained,
        Unmasked,
        Embedded,
        Unpacks,
    ),
    *(Pooler, Both, Doubled, Valued),
]
REFUSED = {
    MeanPooled: r"output 0 of MeanPooled is not per token.* before head \(Linear\); return the states",
    First: r"output 0 of First is not per token, .*reads some tokens of it or mixes rows before head \(Linear\)",
    Recurrent: r"lstm \(LSTM\) of Recurrent moves information between tokens, across the borders",
    Convolved: r"conv \(Conv1d\) of Convolved moves information between tokens",
    Normed: r"norm of Normed is a BatchNorm1d, which takes its statistics over whole rows",
    OwnNormed: r"norm \(OwnNorm\) of OwnNormed moves information between tokens",
    Attends: r"mix \(MultiheadAttention\) of Attends moves information between tokens",
    Leaks: r"the forward method of Leaks moves information between tokens by itself, before head \(Linear\)",
    ShutGate: r"the forward method of ShutGate moves information between tokens by itself, before head",
    Looks: r"what Looks computes is not always the same: it reads numbers out of tensors",
    LooksAtMask: r"what LooksAtMask computes is not always the same: it reads numbers out of tensors",
    Counted: r"the forward method of Counted moves information between tokens by itself, before head",
    LongRows: r"what LongRows computes is not always the same: it calls other functions on 1 x",
    ManyRows: r"what ManyRows computes is not always the same: it calls other functions on 9 x",
    Places: r"what Places computes is not always the same: tokens get other values on 1 x",
    Sliced: r"output 0 of Sliced is not per token, .* before head \(Linear\)",
    Neighbour: r"Neighbour gives BertModel something that it computed of several tokens \(ids, states or a mask",
    OwnMask: r"OwnMask gives BertModel something that it computed of several tokens .*hand input_ids and",
    Twice: r"Twice calls the BertModel inside 2 times on one batch",
    TwoModels: r"TwoModels holds several models, encoder \(BertModel\), other \(BertModel\)",
    Noise: r"Noise gives one sequence two results in evaluation mode: it draws random",
    NoiseInTraining: r"NoiseInTraining gives one sequence two results in training, by more than dropout",
    Keeps: r"past of Keeps changes with every call",
    Parts: r"Parts calls the BertModel inside 0 times on one batch",
    PooledGate: r"output 0 of PooledGate is not per token, nor computed from what BertModel gives for each sequence",
    OverBatch: r"output 0 of OverBatch is not per token, nor computed from what BertModel gives for each sequence",
    PooledToTokens: r"the forward method of PooledToTokens moves information between tokens by itself",
    Balanced: r"head\.bias of Balanced gets a gradient in training even if nothing is learned",
    Named: r"the forward method of Named takes no input_ids, by which a batch is given \(it takes ids, mask\)",
    OwnResult: r"output 0 of OwnResult is a Result, in which nopad cannot look",
    Always: r"norm of Always is not per token, nor computed from",
    OwnBackward: r"OwnBackward changes gradients by code of its own \(Backwards\), which cannot be followed",
    LongBackward: r"what LongBackward computes is not always the same: it calls other functions on 1 x",
    Hooked: r"Hooked changes gradients by code of its own \(register_hook\), which cannot be followed",
    RowsAsTime: r"the result of gru \(GRU\) of RowsAsTime for a row changes if the batch has another row",
    Deeper: r"the forward method of Deeper moves information between tokens by itself, before head",
    Called: r"Called has a forward method that is not its class's, or a __call__ of its own",
    Capacity: r"the model \(Capacity\) of Capacity has experts of limited capacity \(expert_capacity = 64\)",
}
