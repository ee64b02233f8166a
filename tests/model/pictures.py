"""Tiny models that take images and videos beside their tokens, and sequences with them as processors give them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import transformers as t

import nopad

VOCABULARY, IMAGE, START, END, VIDEO = 99, 90, 91, 92, 93
FORMS = {"flat": nopad.Flat(), "rows": nopad.Rows(52), "end to end": nopad.Rows(33, end_to_end=True)}
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
IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
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


def qwen3_vl(experts: bool = False, **text: Any) -> Any:
    eye = {
        "depth": 3,
        "hidden_size": 16,
        "out_hidden_size": 24,
        "num_heads": 2,
        "intermediate_size": 24,
        "patch_size": PATCH,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],  # features of two layers, added behind two layers of the text
    }
    text = {**TEXT, "num_hidden_layers": 3, "head_dim": 12, "rope_parameters": dict(ROPE), **text}
    if experts:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return (t.Qwen3VLMoeConfig if experts else t.Qwen3VLConfig)(vision_config=eye, text_config=text, **IDS)


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
    "qwen2_5_vl, videos": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
    "qwen2_vl, videos": qwen2_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl, videos": qwen3_vl,
    "qwen3_vl_moe": partial(qwen3_vl, True),
    "qwen3_vl_moe, videos": partial(qwen3_vl, True),
}
CLASSES = {
    "llava": "Llava",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen2_vl": "Qwen2VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
}


class Video(NamedTuple):
    """The grid of a video, and the seconds between its steps, which only Qwen2.5-VL takes."""

    steps: int
    height: int
    width: int
    seconds: float = 1.0


# Of each sequence: its parts, a number of text tokens, the grid (time, height, width) of an image, or a video.
PARTS = [
    [3, (1, 4, 6), 5],
    [7],
    [2, (1, 2, 2), 1, (1, 8, 4), 4],
    [1],
    [(1, 4, 4), 6],
    [4, (1, 6, 6)],
    [2, (2, 4, 4), 3],
]


MIXED = [
    [3, (1, 4, 6), 5, Video(2, 4, 2, 0.5), 2],
    [7],
    [2, Video(3, 2, 2), 1, (1, 8, 4), 1, Video(1, 4, 4, 0.7), 4],
    [1, (1, 4, 4), 2],
    [Video(4, 2, 6, 2.0), 6],
    [1],
    [4, Video(2, 4, 4, 0.3), Video(2, 4, 4, 0.9)],
]


def build(kind: str, head: str = "ForConditionalGeneration", config: Any = None) -> Any:
    """A model of this kind, of seed 0, in float64 and in evaluation mode."""
    torch.manual_seed(0)
    config = CONFIGS[kind]() if config is None else config
    model = getattr(t, CLASSES[config.model_type] + head)(config)
    if config.model_type.endswith("moe"):
        model.set_experts_implementation("eager")  # others compute in float32 at most
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 would hide what is not added
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.double().eval()


def samples(kind: str, parts: Any = None, seed: int = 1) -> list[dict[str, torch.Tensor]]:
    """One dict per sequence, as a processor gives it for one text: columns of one row, and its images."""
    generator = torch.Generator().manual_seed(seed)
    if parts is None:
        parts = MIXED if kind.endswith("videos") else PARTS
    if kind.startswith("llava"):
        return [_llava(one, generator) for one in parts]
    return [_qwen(one, generator, kind.partition(",")[0]) for one in parts]


def _row(ids: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    row = torch.cat(ids)[None]
    return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.clone()}


def _qwen(parts: Any, generator: torch.Generator, kind: str) -> dict[str, torch.Tensor]:
    ids, pixels, grids, seconds = [], {IMAGE: [], VIDEO: []}, {IMAGE: [], VIDEO: []}, []
    for part in parts:
        if isinstance(part, int):
            ids.append(torch.randint(5, 89, (part,), generator=generator))
            continue
        frames, height, width = part[:3]
        token = VIDEO if isinstance(part, Video) else IMAGE
        runs = frames if token == VIDEO and kind.startswith("qwen3") else 1
        for _ in range(runs):
            if runs > 1:  # the time of a step, in words
                ids.append(torch.randint(5, 89, (3,), generator=generator))
            ids.append(torch.tensor([START, *[token] * (frames * height * width // MERGE**2 // runs), END]))
        size = 3 * 2 * PATCH**2
        pixels[token].append(torch.randn(frames * height * width, size, generator=generator, dtype=torch.float64))
        grids[token].append((frames, height, width))
        seconds += [part.seconds] if token == VIDEO else []
    row = _row(ids)
    row["mm_token_type_ids"] = (row["input_ids"] == IMAGE).int() + 2 * (row["input_ids"] == VIDEO).int()
    if pixels[IMAGE]:
        row |= {"pixel_values": torch.cat(pixels[IMAGE]), "image_grid_thw": torch.tensor(grids[IMAGE])}
    if pixels[VIDEO]:
        row |= {"pixel_values_videos": torch.cat(pixels[VIDEO]), "video_grid_thw": torch.tensor(grids[VIDEO])}
    if seconds and kind == "qwen2_5_vl":
        row["second_per_grid_ts"] = torch.tensor(seconds)
    return row


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


def logits_alone(model: Any, given: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """What the stock model gives for each sequence with its images."""
    return [alone(model, sample).logits[0] for sample in given]


def laid(kind: str, form: Any = FORMS["rows"], parts: Any = None, **more: Any) -> nopad.PackedBatch:
    """The samples of a kind, as one batch."""
    return nopad.PackedBatch.from_features(samples(kind, parts), form, **more)


def far(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest difference."""
    return max(float((one - two).detach().abs().max()) for one, two in zip(found, wanted, strict=True))
