"""Tiny models that take images beside their tokens, and sequences with images as processors give them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as t

VOCABULARY, IMAGE, START, END = 99, 90, 91, 92
PATCH, MERGE = 4, 2
SIDE = 16  # of LLaVA's images: 4 x 4 patches
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EYE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
LLAVA_EYE = {**EYE, "image_size": SIDE, "patch_size": PATCH}
IDS = {"image_token_id": IMAGE, "video_token_id": 93, "vision_start_token_id": START, "vision_end_token_id": END}
ROPE = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0}


def qwen2_vl(**text: Any) -> Any:
    eye = {"depth": 2, "embed_dim": 16, "hidden_size": 24, "num_heads": 2, "mlp_ratio": 2, "patch_size": PATCH}
    return t.Qwen2VLConfig(vision_config=eye, text_config={**TEXT, "rope_parameters": dict(ROPE), **text}, **IDS)


def qwen2_5_vl(**text: Any) -> Any:
    eye = {
        "depth": 2,
        "hidden_size": 16,
        "out_hidden_size": 24,
        "num_heads": 2,
        "intermediate_size": 24,
        "patch_size": PATCH,
        "window_size": 2 * PATCH * MERGE,  # two by two tokens, fewer than most images have
        "fullatt_block_indexes": [1],
    }
    return t.Qwen2_5_VLConfig(vision_config=eye, text_config={**TEXT, "rope_parameters": dict(ROPE), **text}, **IDS)


def llava(eye: str = "clip_vision_model", text: str = "llama", **changes: Any) -> Any:
    return t.LlavaConfig(
        vision_config={"model_type": eye, **LLAVA_EYE},
        text_config={"model_type": text, **TEXT},
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full" if eye.startswith("siglip") else "default",
        **changes,
    )


CONFIGS: dict[str, Any] = {
    "llava": llava,
    "llava, siglip": lambda: llava("siglip_vision_model"),
    "llava, mistral": lambda: llava(text="mistral"),
    "llava, qwen2": lambda: llava(text="qwen2"),
    "llava, qwen3": lambda: llava(text="qwen3"),
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
}
CLASSES = {"llava": "Llava", "qwen2_5_vl": "Qwen2_5_VL", "qwen2_vl": "Qwen2VL"}
# Of each sequence: its parts, a number of text tokens or the grid (time, height, width) of an image.
PARTS = [
    [3, (1, 4, 6), 5],
    [7],
    [2, (1, 2, 2), 1, (1, 8, 4), 4],
    [1],
    [(1, 4, 4), 6],
    [4, (1, 6, 6)],
    [2, (2, 4, 4), 3],
]


def build(kind: str, head: str = "ForConditionalGeneration", config: Any = None) -> Any:
    """A model of this kind, of seed 0, in float64 and in evaluation mode."""
    torch.manual_seed(0)
    config = CONFIGS[kind]() if config is None else config
    model = getattr(t, CLASSES[config.model_type] + head)(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 would hide what is not added
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.double().eval()


def samples(kind: str, parts: Any = PARTS, seed: int = 1) -> list[dict[str, torch.Tensor]]:
    """One dict per sequence, as a processor gives it for one text: columns of one row, and its images."""
    generator = torch.Generator().manual_seed(seed)
    return [_llava(one, generator) if kind.startswith("llava") else _qwen(one, generator) for one in parts]


def _row(ids: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    row = torch.cat(ids)[None]
    return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.clone()}


def _qwen(parts: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids, pixels, grids = [], [], []
    for part in parts:
        if isinstance(part, int):
            ids.append(torch.randint(5, 89, (part,), generator=generator))
            continue
        frames, height, width = part
        tokens = frames * height * width // MERGE**2
        ids.append(torch.tensor([START, *[IMAGE] * tokens, END]))
        size = 3 * 2 * PATCH**2
        pixels.append(torch.randn(frames * height * width, size, generator=generator, dtype=torch.float64))
        grids.append(part)
    row = _row(ids)
    row["mm_token_type_ids"] = (row["input_ids"] == IMAGE).int()
    return row | ({"pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor(grids)} if pixels else {})


def _llava(parts: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
    ids, pixels = [], []
    for part in parts:
        if isinstance(part, int):
            ids.append(torch.randint(5, 89, (part,), generator=generator))
            continue
        ids.append(torch.tensor([IMAGE] * (SIDE // PATCH) ** 2))
        pixels.append(torch.rand(3, SIDE, SIDE, generator=generator, dtype=torch.float64))
    return _row(ids) | ({"pixel_values": torch.stack(pixels)} if pixels else {})


def alone(model: Any, sample: dict[str, torch.Tensor]) -> Any:
    """What the stock model gives for one sequence with its images."""
    return model(**{name: value for name, value in sample.items() if name not in ("labels", "attention_mask")})
