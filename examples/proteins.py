"""`python examples/proteins.py`: proteins and DNA from FASTA through ESM, in packs."""

import random
from itertools import product

import torch
from transformers import EsmConfig, EsmModel

import nopad
from nopad.model import pooled

CAPACITY = 256
SPECIAL = ["<cls>", "<pad>", "<eos>", "<unk>"]
KINDS = {  # letters of ESM-2; the six letters a token of the Nucleotide Transformer, single ones for the rest
    "protein": [*SPECIAL, *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null>", "<mask>"],
    "DNA": [*SPECIAL, *map("".join, product("ATCG", repeat=6)), *"ATCGN", "<mask>"],
}


def fasta(lines):
    """Yield (name, letters) of each sequence of a FASTA file; letters may go on over lines, and be small."""
    name, parts = None, []
    for line in [*lines, ">"]:
        if line.startswith(">"):
            if name is not None:
                yield name, "".join(parts)
            name, parts = line[1:].strip(), []
        else:
            parts.append(line.strip().upper())


def ids(letters, kind, numbers):
    """Return the ids of a sequence, from <cls> to, for proteins, <eos>."""
    step = 6 if kind == "DNA" else 1
    whole = len(letters) // step * step
    pieces = [*(letters[at : at + step] for at in range(0, whole, step)), *letters[whole:]]
    pieces = [part for piece in pieces for part in ([piece] if piece in numbers else piece)]  # an N in a six
    ends = [numbers["<eos>"]] if kind == "protein" else []
    return [numbers["<cls>"], *(numbers.get(piece, numbers["<unk>"]) for piece in pieces), *ends]


def file(letters, longest):
    """Return the lines of a FASTA file, drawn by chance."""
    for n in range(60):
        drawn = "".join(random.choices(letters, k=int(longest ** random.uniform(0.6, 1))))
        yield from [f">sequence {n}", *(drawn[at : at + 60] for at in range(0, len(drawn), 60))]


def network(vocabulary):
    """Return a small ESM with weights by chance."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = EsmConfig(vocab_size=len(vocabulary), pad_token_id=1, mask_token_id=len(vocabulary) - 1, **sizes)
    config.position_embedding_type = "rotary"
    return EsmModel(config, add_pooling_layer=False).eval()


random.seed(0)
torch.manual_seed(0)
for kind, letters, longest in (("protein", "LAGVSERTIDPKQNFYMHWC", 250), ("DNA", "ATCG" * 30 + "N", 1200)):
    numbers = {token: number for number, token in enumerate(KINDS[kind])}
    texts = [ids(found, kind, numbers) for _, found in fasta(file(letters, longest))]
    model = network(KINDS[kind])
    plan = nopad.plan([len(one) for one in texts], CAPACITY)
    most = max(map(len, texts))
    print(f"{len(texts)} {kind} sequences: padding {1 - plan.tokens / (len(texts) * most):.1%} at {most} tokens,")
    print(f"{1 - plan.efficiency:.1%} in {plan.packs} rows of {CAPACITY}; packing factor {plan.packing_factor:.2f}")
    print(nopad.audit(model))
    batch = nopad.PackedBatch.from_sequences(texts, nopad.Rows(CAPACITY))
    with torch.no_grad():
        vectors = pooled(nopad.packed(model)(**batch).last_hidden_state, batch, "mean")  # [n, 32]
