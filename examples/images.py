"""`python examples/images.py`: images of many resolutions through one ViT, as packs of patches (NaViT's way)."""

import torch
from transformers import ViTConfig, ViTForImageClassification

import nopad

PATCH, CAPACITY = 8, 128
torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
config = ViTConfig(**sizes, image_size=64, patch_size=PATCH, num_labels=3)
model = nopad.packed(ViTForImageClassification(config).eval())
images = [torch.rand(3, PATCH * height, PATCH * width) for height, width in torch.randint(2, 11, (60, 2)).tolist()]


def patches(model, image):
    """Return [CLS] and an image's patches [n, H]; positions in two dimensions are interpolated to its own size."""
    return model.vit.embeddings(image[None], interpolate_pos_encoding=True)[0]


def packed(model, images):
    """Return the logits of each image: all of them in rows of one width, through one call of the model."""
    batch = nopad.PackedBatch.from_embeddings([patches(model, one) for one in images], nopad.Rows(CAPACITY))
    return batch.unpack_sequences(model(**batch).logits)


def alone(model, image):
    """Return the logits of one image, as transformers' own ViT takes it."""
    return model(image[None], interpolate_pos_encoding=True).logits[0]


lengths = [1 + image[0].numel() // PATCH**2 for image in images]
plan = nopad.plan(lengths, CAPACITY)
before = 1 - sum(lengths) / (len(lengths) * max(lengths))
print(f"{len(images)} images of {min(lengths)} to {max(lengths)} tokens: padding {before:.1%} at one size,")
print(f"{1 - plan.efficiency:.1%} in {plan.packs} rows of {CAPACITY}; packing factor {plan.packing_factor:.2f}")
print(nopad.audit_samples(model, images[:8], alone=alone, packed=packed))
