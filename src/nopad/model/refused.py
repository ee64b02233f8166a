"""`REFUSED`: the model types that nopad's tables refuse, each with the reason, as ``{model type: reason}``.

Some of them may run on packs nevertheless: ``nopad.packed(model, prove="always")`` tries to prove it.
"""

from __future__ import annotations

__all__ = ["REFUSED"]

_STATE = "its state-space, linear-attention or recurrent layers carry their state from one sequence into the next"
_AROUND = "its attention does not go through transformers' registry, by which nopad reaches it"
_CONVOLUTION = "its convolutions mix neighbouring tokens, across the borders of sequences"
_MROPE = "it counts positions in several axes (M-RoPE) in a way of its own, of which nothing is proven"
_PART = "it is the text part of a model with images, whose positions have several axes; make the whole model pack-safe"
_DEEP = "it adds features of images to the states of several layers (DeepStack), of which nothing is proven"
_CROSS = "its text attends to images by cross attention, with a mask of whole rows"
_BOTH = "tokens of an image see each other in both directions, by a mask that it makes of whole rows"
_TILES = "it cuts images into tiles, or makes tokens of them in another way of which nothing is proven"
_INDEXER = "its layers pick the tokens that they attend to from the whole row"
_CAPACITY = "its experts have a capacity, and which tokens they drop depends on who shares the row or the batch"
_UNSAID = "its layers do not say whether they attend causally, and it makes its masks itself"

_BY_REASON = {
    _STATE: """
        qwen4_exp_text rwkv xlstm
    """,
    _AROUND: """
        cpmant flaubert git gpt_neox_japanese ibert lilt luke openai-gpt tapas xglm xlm
    """,
    _CONVOLUTION: "inkling_text inkling2_text",
    _MROPE: """
        ernie4_5_vl_moe glm46v glm4v glm4v_moe glm4v_text glm4v_moe_text glm_image_text glm_ocr glm_ocr_text
        paddleocr_vl qwen2_5_omni_thinker qwen3_5 qwen3_5_moe
    """,
    _PART: "qwen2_5_vl_text qwen2_vl_text qwen3_vl_moe_text qwen3_vl_text",
    _DEEP: "qwen3_omni_moe_thinker",
    _CROSS: "evolla idefics mllama",
    _BOTH: "gemma3 gemma4 paligemma",
    _TILES: """
        aria aya_vision blip-2 chameleon cohere2_vision fuyu gemma3n got_ocr2 idefics2 idefics3 instructblip internvl
        janus lfm2_vl llama4 llava_next llava_next_video llava_onevision mistral3 ovis2 perception_lm smolvlm
        video_llava vipllava
    """,
    _INDEXER: "axk2 deepseek_v32 deepseek_v4 dots3_note_text glm_moe_dsa hy_v4",
    _UNSAID: "layoutlm markuplm splinter",
    "its block-sparse attention and global tokens span the whole row": "big_bird bigbird_pegasus",
    "its windows and global tokens span the whole row": "led longformer longt5",
    "it pools neighbouring tokens, across the borders of sequences": "canine funnel",
    "it hashes or samples the whole row to choose what attends to what": "mra nystromformer reformer yoso",
    "its layers mask keys by what they hold, over the whole row": "doge",
    "its layers attend within fixed chunks of the row": "llama4_text",
    _CAPACITY: "nllb-moe switch_transformers",
    "its relative attention and permutation masks run over the whole row": "xlnet",
}
REFUSED: dict[str, str] = {kind: reason for reason, kinds in _BY_REASON.items() for kind in kinds.split()}
