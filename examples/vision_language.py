"""`python examples/vision_language.py`: texts with images in packs with two capacities, tokens and images."""

import copy

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

import nopad

TOKENS, IMAGES = 512, 10  # of a pack
IMAGE, START, END, PATCH = 90, 91, 92, 4  # ids of tokens; a patch has 2 x 3 x 4 x 4 values, four patches are a token
COLUMNS = ("input_ids", "mm_token_type_ids")
torch.manual_seed(0)
sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
rope = {"rope_type": "default", "mrope_section": [4, 4, 4]}
ids = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2}
text = {**sizes, **ids, "num_key_value_heads": 1, "rope_parameters": rope}
eye = {"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": PATCH}
stock = Qwen2VLForConditionalGeneration(
    Qwen2VLConfig(text_config=text, vision_config=eye, image_token_id=IMAGE, vision_start_token_id=START)
).eval()
model = nopad.packed(copy.deepcopy(stock))


def sample(images, words):
    """Return one text with its images, as the model's processor gives it: an image, some words, the next image ..."""
    grids = [[1, *(2 * torch.randint(1, 6, (2,))).tolist()] for _ in range(images)]
    ids = [torch.randint(5, 89, (words,))]
    for _, height, width in grids:
        ids += [torch.tensor([START, *[IMAGE] * (height * width // 4), END]), torch.randint(5, 89, (4,))]
    ids = torch.cat(ids)[None]
    patches = sum(height * width for _, height, width in grids)
    seen = {"pixel_values": torch.randn(patches, 6 * PATCH**2), "image_grid_thw": torch.tensor(grids)}
    return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int(), **(seen if images else {})}


def size(one):
    """Return a sample's two sizes."""
    return one["input_ids"].numel(), len(one.get("image_grid_thw", ()))


def alone(model, one):
    """Return the logits of one sample, as transformers' own model takes it."""
    return model(**one).logits[0]


def packed(model, samples):
    """Return the logits of each sample, all in one stream."""
    batch = nopad.PackedBatch.from_features(samples)
    return batch.unpack_tokens(model(**batch).logits)


def padded(model, samples):
    """Return the logits of each sample, padded to the longest."""
    rows = {name: pad_sequence([one[name][0] for one in samples], batch_first=True) for name in COLUMNS}
    seen = [one for one in samples if "pixel_values" in one]
    for name in ("pixel_values", "image_grid_thw") if seen else ():
        rows[name] = torch.cat([one[name] for one in seen])
    lengths = [size(one)[0] for one in samples]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return [row[:n] for row, n in zip(model(**rows, attention_mask=mask.long()).logits, lengths, strict=True)]


samples = [sample(*drawn) for drawn in zip([0, 0, 1, 1, 2, 4] * 12, torch.randint(4, 90, (72,)).tolist(), strict=True)]
sizes = torch.tensor([size(one) for one in samples])
packs = nopad.pack_several(sizes.tolist(), [(TOKENS, IMAGES)])[TOKENS, IMAGES]
before = 1 - sizes.sum(0) / (len(sizes) * sizes.max(0).values)
after = 1 - sizes.sum(0) / (len(packs) * torch.tensor([TOKENS, IMAGES]))
print(f"{len(samples)} texts: padding {before[0]:.1%} of tokens, {before[1]:.1%} of images at the size of the largest,")
print(f"{after[0]:.1%} and {after[1]:.1%} in {len(packs)} packs; packing factor {len(samples) / len(packs):.2f}")

batches = [pack.tolist() for pack in packs]
loader = DataLoader(samples, batch_sampler=batches, collate_fn=nopad.PackedBatch.from_features)
slots, apart = 0, 0.0
with torch.no_grad():
    for numbers, batch in zip(batches, loader, strict=True):
        rows = padded(stock, [samples[number] for number in numbers])
        found = batch.unpack_tokens(model(**batch).logits)
        apart = max(apart, *(float((one - two).abs().max()) for one, two in zip(found, rows, strict=True)))
        slots += len(numbers) * batch.max_seqlen
times = slots / int(sizes[:, 0].sum())
print(f"the same batches padded: {times:.2f} times as many slots, logits equal within {apart:.0e}")
print(nopad.audit_samples(model, samples[:6], alone=alone, packed=packed))
