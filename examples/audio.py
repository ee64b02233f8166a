"""`python examples/audio.py`: clips of any duration as frames, through an encoder with rotary positions, in packs."""

import torch
from transformers import ModernBertConfig, ModernBertModel

import nopad
from nopad.model import pooled

RATE, CAPACITY, STACKED = 16_000, 128, 4
NO_IDS = dict.fromkeys([f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")], 0) | {"vocab_size": 1}
torch.manual_seed(0)


def frames(sound):
    """Return a clip's log-spectrogram, in frames of 25 ms every 10 ms, four of them to a token: [n, 4 x 201]."""
    spectrum = torch.stft(sound, 400, 160, window=torch.hann_window(400), center=False, return_complex=True)
    whole = spectrum.abs().add(1e-5).log().T
    return whole[: len(whole) // STACKED * STACKED].reshape(-1, STACKED * 201)


class Listener(torch.nn.Module):
    """Frames to classes. Only attention mixes tokens; in wav2vec2 and HuBERT a convolution over positions does."""

    def __init__(self):
        """Build the parts; only the encoder is to be pack-safe."""
        super().__init__()
        sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
        self.project = torch.nn.Linear(STACKED * 201, 32)
        self.encoder = nopad.packed(ModernBertModel(ModernBertConfig(**sizes, **NO_IDS)))
        self.classify = torch.nn.Linear(32, 5)

    def forward(self, clips):
        """Return the logits [n, 5] of n clips, in one call of the encoder."""
        batch = nopad.PackedBatch.from_embeddings([self.project(clip) for clip in clips], nopad.Rows(CAPACITY))
        return self.classify(pooled(self.encoder(**batch).last_hidden_state, batch, "mean"))


def alone(model, clip):
    """Return the logits of one clip, without anything of nopad's."""
    return model.classify(model.encoder(inputs_embeds=model.project(clip)[None]).last_hidden_state[0].mean(0))


def together(model, clips):
    """Return the logits of each clip."""
    return list(model(clips))


times = [torch.arange(int(RATE * seconds)) / RATE for seconds in (0.3 + 4.5 * torch.rand(60) ** 2).tolist()]
clips = [frames(torch.sin(torch.rand(()) * 9000 * time)) for time in times]
model = Listener().eval()
lengths = [len(clip) for clip in clips]
plan = nopad.plan(lengths, CAPACITY)
before = 1 - sum(lengths) / (len(lengths) * max(lengths))
print(f"{len(clips)} clips of {min(lengths)} to {max(lengths)} tokens: padding {before:.1%} at the longest's duration,")
print(f"{1 - plan.efficiency:.1%} in {plan.packs} rows of {CAPACITY}; packing factor {plan.packing_factor:.2f}")
print(nopad.audit_samples(model, clips[:8], alone=alone, packed=together))
