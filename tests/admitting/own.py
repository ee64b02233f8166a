"""Models of nobody's table: small encoders and a decoder, with attention by hand or through transformers' registry."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel, BertPreTrainedModel, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class OwnConfig(PreTrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size=3000, hidden_size=64, num_hidden_layers=3, extra="none", **others):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.max_position_embeddings, self.extra = 4, 512, extra
        super().__init__(**others)


class ByHand(nn.Module):
    """Attention of one's own, without a mask."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, -1))


class Registered(nn.Module):
    """Attention through transformers' registry."""

    def __init__(self, config):
        super().__init__()
        self.config, self.heads, self.is_causal = config, config.num_attention_heads, True
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, attention_mask=None):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return self.out(attend(self, q, k, v, attention_mask)[0].reshape(rows, length, -1))


class RowMean(nn.Module):
    """A leak that no mask stops, in a module of its own."""

    def forward(self, x):
        return x - x.mean(1, keepdim=True)


class BatchMean(nn.Module):
    """Statistics over the batch, in training only."""

    def forward(self, x):
        return x - 4e-3 * x.mean((0, 1), keepdim=True) if self.training else x


class Sign(nn.Module):
    """What it computes depends on the values of all that it is given."""

    def forward(self, x):
        return x * 2 if float(x.mean()) > 0 else x


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Flat(nn.Module):
    """Mixes tokens, and knows of no rows."""

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        return x + flat.roll(1, 0).reshape(x.shape)


class AddedLoss(torch.autograd.Function):
    """Gives back the states that it gets, and adds a loss to what is learned."""

    @staticmethod
    def forward(context, states, loss):
        return states.clone()

    @staticmethod
    def backward(context, slope):
        return slope, slope.new_ones(())


class Router(nn.Module):
    """Scales each token by the probability of its expert; in training, `observe` sees which experts were chosen."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 4)

    def forward(self, x):
        likely = self.gate(x[..., :32]).softmax(-1)
        best = likely.max(-1)
        x = x * (1 + best.values[..., None])
        return self.observe(x, likely, nn.functional.one_hot(best.indices, 4)) if self.training else x


class HiddenLoss(Router):
    """Adds a loss that balances experts to gradients, and shows it in no output."""

    def observe(self, x, likely, chosen):
        shares = chosen.to(likely).mean((0, 1))
        return AddedLoss.apply(x, 0.01 * (shares * likely.mean((0, 1))).sum())


class Counts(Router):
    """Counts the tokens of each expert."""

    def __init__(self):
        super().__init__()
        self.register_buffer("tokens", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(()))

    def observe(self, x, likely, chosen):
        self.tokens += chosen.sum((0, 1))
        self.calls += 1
        return x


class CountsCalls(Counts):
    """Counts calls only, which says nothing of a batch."""

    def observe(self, x, likely, chosen):
        self.calls += 1
        return x


class Limited(Router):
    """Each expert takes so many tokens that no sequence of a proof has too many."""

    def __init__(self):
        super().__init__()
        self.expert_capacity = 5000


EXTRA = {
    "row": RowMean,
    "batch": BatchMean,
    "sign": Sign,
    "noise": Noise,
    "flat": Flat,
    "hidden loss": HiddenLoss,
    "counts": Counts,
    "counts calls": CountsCalls,
    "limited": Limited,
}


class Layer(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.attention = attention(config)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.extra = EXTRA.get(config.extra, nn.Identity)()
        self.mlp = nn.Sequential(nn.Linear(config.hidden_size, 32), nn.GELU(), nn.Linear(32, config.hidden_size))

    def forward(self, x, *mask):
        x = self.extra(x + self.attention(self.norm(x), *mask))
        return x + self.mlp(x)


class OwnEncoder(PreTrainedModel):
    """Counts positions along the row, and takes no mask into its layers."""

    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, ByHand) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self):
        return self.tokens

    def forward(self, input_ids, attention_mask=None):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            x = layer(x)
        if self.config.extra == "own forward":
            x = x + 4e-3 * x.mean(1, keepdim=True)
        return BaseModelOutput(last_hidden_state=x)


class OwnDecoder(PreTrainedModel):
    """Attends through the registry, without positions."""

    config_class = OwnConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, Registered) for _ in range(config.num_hidden_layers))
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.tokens

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        x = self.tokens(input_ids)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=None,
            position_ids=position_ids,
        )
        for layer in self.layers:
            x = layer(x, mask)
        logits, loss = self.head(x), None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return MaskedLMOutput(logits=logits, loss=loss)


class Convolved(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Around(BertPreTrainedModel):
    """Modules of one's own around BERT; `how` is what they do with its states."""

    how = "tokens"

    def __init__(self, config):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.conv = Convolved(config.hidden_size) if self.how == "convolution" else nn.Identity()
        self.norm = nn.BatchNorm1d(config.hidden_size) if self.how == "batch norm" else nn.Identity()
        self.out = nn.Linear(config.hidden_size, 3)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        if self.how in ("tokens", "convolution", "batch norm"):
            return MaskedLMOutput(logits=self.out(self.conv(states)))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        pooled = {"first": states[:, 0], "mean": means, "max": states.amax(1)}[self.how]
        return SequenceClassifierOutput(logits=self.out(pooled))


class Tagger(Around):
    how = "tokens"


class ConvolvedTagger(Around):
    how = "convolution"


class NormedTagger(Around):
    how = "batch norm"


class FirstClassifier(Around):
    how = "first"


class MeanClassifier(Around):
    how = "mean"


class MaxClassifier(Around):
    how = "max"


def bert_config(**more):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return BertConfig(vocab_size=300, **{**sizes, **more})
