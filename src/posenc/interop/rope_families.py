"""Families that rotate queries and keys: one entry for each of transformers 5.24's model types, and
the families outside it in wide use. Read from their sources; tests/test_conformance.py runs them.
"""

from dataclasses import replace
from typing import Any

from posenc.interop.families import Family

__all__ = ["ROPE"]

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def types(**thetas: float) -> dict[str, dict[str, Any]]:
    """Plain rotation with one base for each layer type."""
    return {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()}


LLAMA = Family()
LLAMA_128 = Family(head_dim=128)
ADJACENT = Family(pairing="adjacent")
MLA = Family(pairing="adjacent", mla=True, softmax=True)
SWITCHED_MLA = replace(MLA, interleave=True)
PARTIAL = Family(fraction=0.5)
LLAMA3_OF = {"rope_type": "llama3", "original_max_position_embeddings": 8192,
             "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
GPT_OSS = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0,
           "beta_slow": 1.0, "truncate": False,
           "original_max_position_embeddings": 4096}  # fmt: skip
MISTRAL_YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}  # fmt: skip
GPT2_NAMES = {"hidden_size": "n_embd", "num_attention_heads": "n_head",
              "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}  # fmt: skip
BLOCKS = {"layer_types": "layers_block_type"}
HUNYUAN = frozenset({"alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})
MUSE = {"layers": "<FSSS", "per_layer": "layer_rope_theta", "switched": True,
        "unrotated": ("full_attention",)}  # fmt: skip

# The two bases of Gemma 3 and what learned from it.
GEMMA3 = Family(
    head_dim=256,
    types=types(full_attention=1e6, sliding_attention=1e4),
    theta_keys={FULL: "rope_theta", SLIDING: "rope_local_base_freq"},
    scaled=(FULL,),
    layers="SSSSSF",
    period="sliding_window_pattern",
    scale_key="query_pre_attn_scalar",
)
GEMMA4 = Family(
    head_dim=256,
    types={
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
    wide={FULL: 512},
    layers="SSSSSF|F",
)
MODERNBERT = Family(
    types=types(full_attention=160_000.0, sliding_attention=1e4),
    theta_keys={FULL: "global_rope_theta", SLIDING: "local_rope_theta"},
    layers="FSS",
    period="global_attn_every_n_layers",
    idle=frozenset({"position_embedding_type"}),
)
COHERE2 = Family(
    pairing="adjacent", layers="SSSF", period="sliding_window_pattern", unrotated=(FULL,)
)
EXAONE4 = Family(
    layers="SSSF", period="sliding_window_pattern", unrotated=(FULL,), unless_no_window=True
)
QWEN3_NEXT = Family(fraction=0.25, head_dim=256, layers="LLLF", period="full_attention_interval")
GRANITE = Family(scale_key="attention_multiplier")
GEMMA2 = Family(head_dim=256, layers="SF", scale_key="query_pre_attn_scalar")
MROPE_1E6 = Family(theta=1e6, mrope=True)
QWEN3_VL = Family(theta=500_000.0, mrope=True, order="interleaved", sections=(24, 20, 20))
GLM_AXES = (8, 12, 12)
BY_HEAD = Family(refuse="it rotates by the index of the head, so tokens get no position at all")


def family(names: str, facts: Family, **changes: Any) -> dict[str, Family]:
    """One entry for each name."""
    return dict.fromkeys(names.split(), replace(facts, **changes))


ROPE: dict[str, Family] = {
    # Halves, the whole head ---------------------------------------------------------------------
    **family(
        "arcee aria_text chameleon deepseek_ocr2_encoder deepseek_ocr2_text diffllama doge "
        "dots1 esmc eurobert gradium_phonon_tts idefics jais2 kyutai_speech_to_text lasr_encoder "
        "llama mimi_decoder mimi_encoder olmo olmo2 olmoe pocket_tts "
        "pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder qwen2 qwen2_moe "
        "qwen3_moe unlimited_ocr_text voxtral_realtime_text qwen3_omni_moe_code2wav falcon_h1",
        LLAMA,
    ),
    **family("mimi mistral starcoder2 ministral moshi pocket_tts_audio_tokenizer", LLAMA,
             windowed=True),
    **family("hyperclovax granite granite4_vision_text granite_docling_text granitemoe "
             "granitemoeshared", GRANITE),
    **family("dia_decoder dia_encoder hrm_text internlm3 iquestcoder qwen3 "
             "qwen3_omni_moe_talker_code_predictor seed_oss", LLAMA_128),
    **family("hunyuan_v1_dense hunyuan_v1_moe", LLAMA, extra=HUNYUAN),
    **family("bitnet csm csm_depth_decoder_model evolla exaone flex_olmo mllama_text_model",
             LLAMA, theta=500_000.0),
    **family("emu3_text_model lfm2_moe mixtral", LLAMA, theta=1e6),
    **family("lfm2", LLAMA, theta=1e6),
    **family("minimax", LLAMA, theta=1e6, layers="FL"),
    **family("gemma", LLAMA, head_dim=256),
    **family("gemma2 t5_gemma_module vaultgemma", GEMMA2),
    "gte": Family(theta=160_000.0),
    "hy_v3": Family(theta=11_158_840.0, head_dim=128),
    "jetmoe": Family(head_dim=128, aliases={"head_dim": "kv_channels"}),
    "jina_embeddings_v3": Family(theta=20_000.0),
    "muse_glimmer_assistant": Family(theta=500_000.0, head_dim=128, layers="S"),
    "nanochat": Family(direction=-1),
    "nomic_bert": Family(theta=1000.0),
    "timesfm2_5": Family(head_dim=80),
    "voxtral_realtime_encoder": Family(head_dim=64, windowed=True),
    # Published with a scaling method ------------------------------------------------------------
    **family("apertus apertus1p5_text", LLAMA, theta=12e6,
             rope={**LLAMA3_OF, "rope_theta": 12e6, "factor": 8.0}),
    "cwm": Family(theta=1e6, head_dim=128, layers="FSSS", period="window_pattern",
                  rope={**LLAMA3_OF, "rope_theta": 1e6, "factor": 16.0}),
    "higgs_audio_v2": Family(
        head_dim=128,
        rope={"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0,
              "low_freq_factor": 0.125, "high_freq_factor": 0.5,
              "original_max_position_embeddings": 1024},
    ),
    "gpt_oss": Family(theta=150_000.0, head_dim=64, layers="SF", rope=GPT_OSS),
    "openai_privacy_filter": Family(theta=150_000.0, head_dim=64, pairing="adjacent", rope=GPT_OSS),
    "ministral3": Family(
        head_dim=128, query_scale="mistral",
        rope={**MISTRAL_YARN, "rope_theta": 1e6, "factor": 16.0,
              "original_max_position_embeddings": 16384},
    ),
    # Halves, the first channels -----------------------------------------------------------------
    **family("dots3_note_audio_encoder glm4_moe glmasr_encoder nemotron persimmon phi "
             "nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp", PARTIAL),
    **family("gpt_neox stablelm", PARTIAL, fraction=0.25),
    **family("gpt_neox_japanese nemotron3_diarization_audio", PARTIAL, fraction=1.0),
    **family("phi3 phi4_multimodal", PARTIAL, fraction=1.0, yarn_lists=True, windowed=True),
    "phimoe": Family(theta=1e6, windowed=True),
    **family("minimax_m2 minimax_m3_vl_text", LLAMA_128, theta=5e6, fraction=1.0),
    "sarvam_moe": Family(theta=8e6, head_dim=64, fraction=1.0),
    "solar_open": Family(theta=1e6, head_dim=128, fraction=1.0),
    "bamba": Family(fraction=0.5, aliases=BLOCKS, types_key="attn_layer_indices"),
    "recurrent_gemma": Family(
        fraction=0.5, layers="RRF", types_key="block_types",
        aliases={**BLOCKS, "sliding_window": "attention_window_size"}
    ),
    "qwen3_next": QWEN3_NEXT,
    # Adjacent channels --------------------------------------------------------------------------
    **family("blt_global_transformer blt_local_decoder blt_local_encoder cohere ernie4_5_moe",
             ADJACENT, theta=500_000.0),
    "blt_patcher": ADJACENT,
    "ernie4_5": Family(pairing="adjacent", theta=500_000.0, head_dim=128),
    "helium": Family(pairing="adjacent", theta=100_000.0, head_dim=128),
    **family("pe_audio_encoder pe_audio_video_encoder pe_video_encoder", ADJACENT,
             theta=20_000.0, head_dim=128),
    **family("glm glm4", ADJACENT, fraction=0.5, head_dim=128),
    "moonshine": Family(
        pairing="adjacent", fraction=0.9,
        aliases={"num_attention_heads": "decoder_num_attention_heads",
                 "num_hidden_layers": "decoder_num_hidden_layers"},
    ),
    "moonshine_streaming": Family(pairing="adjacent", fraction=0.8),
    **family("gptj codegen", ADJACENT, fraction=1.0, aliases=GPT2_NAMES,
             required=("rotary_dim",)),
    # The last channels: decoupled keys ----------------------------------------------------------
    **family("axk1 deepseek_v3 glm4_moe_lite youtu", SWITCHED_MLA),
    **family("axk2 deepseek_v2 deepseek_v32 glm_moe_dsa", MLA),
    "sarvam_mla": replace(SWITCHED_MLA, softmax=False),
    "bailing_hybrid": replace(MLA, theta=6e6, layers="LLLLLF", period="layer_group_size",
                              aliases={"max_position_embeddings": "model_max_length"}),
    "longcat_flash": replace(MLA, theta=1e7, aliases={"num_hidden_layers": "num_layers"}),
    "mistral4": replace(
        SWITCHED_MLA, query_scale="mistral",
        rope={**MISTRAL_YARN, "rope_theta": 1e4, "factor": 128.0,
              "original_max_position_embeddings": 8192},
    ),
    "mistral_large4_text": replace(
        MLA, per_layer="no_rope_layers", query_scale="mistral_large4",
        rope={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2048.0, "beta_fast": 32.0,
              "beta_slow": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": 512},
        notes=("scale and bias of each layer's LearnedLogScale are in the checkpoint "
               "(softmax_scaling)",
               "frequencies are multiplied by exp(alpha), alpha being in the checkpoint"),
    ),
    **family("minicpm3 hy_v4", MLA, pairing="half"),
    # One section for each layer type ------------------------------------------------------------
    **family("gemma3_text t5gemma2_decoder t5gemma2_text", GEMMA3),
    "gemma3n_text": replace(GEMMA3, layers="SSSSF", scale_key=""),
    **family("gemma4_text gemma4_unified_text diffusion_gemma_text", GEMMA4),
    "embedding_gemma2_text": replace(GEMMA4, types=GEMMA3.types, period="sliding_window_pattern"),
    **family("modernbert modernbert-decoder", MODERNBERT),
    "olmo3": Family(
        theta=500_000.0, types=types(full_attention=500_000.0, sliding_attention=500_000.0),
        theta_keys={FULL: "rope_theta", SLIDING: "rope_theta"}, scaled=(FULL,), layers="SSSF",
    ),
    "beam": Family(
        head_dim=128, layers="SSSSSF|F", types={**types(sliding_attention=1e4), FULL: {}},
        unrotated=(FULL,), query_scale="beam",
    ),
    "dory": Family(head_dim=256, layers="SSSF",
                   types=types(full_attention=1e7, sliding_attention=1e4)),
    "mellum": Family(head_dim=128, layers="F",
                     types=types(full_attention=500_000.0, sliding_attention=1e4)),
    "ultrabert": Family(layers="SSF", per_layer="rope_theta",
                        types=types(full_attention=2.56e6, sliding_attention=1e4)),
    "step3p5": Family(head_dim=128, layers="F", fraction=1.0, per_layer="rope_theta",
                      types=types(full_attention=1e4, sliding_attention=1e4), scaled=(FULL,)),
    "laguna": Family(
        head_dim=128, layers="F", fraction=1.0,
        types={FULL: {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
               SLIDING: {"rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "mimo_v2_flash": Family(head_dim=192, layers="F|SSSSSF|", fraction=0.334,
                            types=types(full_attention=5e6, sliding_attention=1e4)),
    "zaya": Family(
        head_dim=128, fraction=1.0, layers="Z",
        types={"hybrid": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
               "hybrid_sliding": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "lfm3": Family(
        theta=1e6, head_dim=128, layers="K|SKFK|",
        types={SLIDING: {"rope_theta": 1e4},
               FULL: {"rope_type": "proportional", "rope_theta": 1e6,
                      "partial_rotary_factor": 0.5}},
    ),
    "dots3_note_text": replace(
        MLA, layers="II|SISS|", type_of={FULL: "indexed_attention"},
        types=types(indexed_attention=8e7, sliding_attention=5e4),
        theta_keys={"indexed_attention": "rope_theta", SLIDING: "swa_rope_theta"},
    ),
    "deepseek_v4": Family(
        pairing="adjacent", trailing=True, head_dim=512, fraction=0.125, layers="HH|HC|",
        types=types(main=1e4, compress=160_000.0), scaled=("compress",),
        theta_keys={"main": "rope_theta", "compress": "compress_rope_theta"},
        type_of={SLIDING: "main", "compressed_sparse_attention": "compress",
                 "heavily_compressed_attention": "compress"},
        notes=("the rotated channels of the attention's output are turned back (Table.inverse)",),
    ),
    # Layers without rotation --------------------------------------------------------------------
    "cohere2": COHERE2,
    "cohere2_moe": replace(COHERE2, head_dim=128),
    "afmoe": Family(head_dim=128, layers="SSSF", period="global_attn_every_n_layers",
                    unrotated=(FULL,)),
    "flint": Family(head_dim=128, layers="FF|SFSS|F", unrotated=(FULL,)),
    "lara_mini": Family(head_dim=128, layers="LSLFS", unrotated=(FULL,)),
    **family("exaone4 exaone_moe", EXAONE4),
    "kolibri1": replace(EXAONE4, head_dim=128, layers="SSSSF", period=""),
    "olmo_hybrid": Family(layers="LLLF"),
    "smollm3": Family(theta=2e6, per_layer="no_rope_layers", period="no_rope_layer_interval"),
    "llama4_text": Family(
        pairing="adjacent", theta=500_000.0, head_dim=128, per_layer="no_rope_layers",
        period="no_rope_layer_interval", query_scale="llama4",
    ),
    **family("granite_swa granitemoe_swa", GRANITE, layers="FSSS", per_layer="layer_rope_theta"),
    "muse_glimmer_text": Family(head_dim=128, **MUSE),
    "muse_spark_text": Family(theta=500_000.0, head_dim=64, **MUSE),
    "granitemoehybrid": replace(GRANITE, only_if=("position_embedding_type", "rope")),
    "zamba2": Family(aliases={**BLOCKS, "head_dim": "attention_head_dim"},
                     required=("head_dim", "layer_types"), only_if=("use_mem_rope", True)),
    "molmo2_text": Family(head_dim=128, per_layer="rope_scaling_layers"),
    # Several axes -------------------------------------------------------------------------------
    **family("qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text", MROPE_1E6),
    "qwen2_5_omni_talker": replace(MROPE_1E6, head_dim=128),
    "paddleocr_vl_text": replace(MROPE_1E6, theta=500_000.0, head_dim=128),
    "qwen3_vl_text": replace(QWEN3_VL, head_dim=128),
    "qwen3_vl_moe_text": QWEN3_VL,
    "qwen3_omni_moe_text": replace(QWEN3_VL, theta=1e6),
    "qwen3_omni_moe_talker_text": replace(QWEN3_VL, theta=1e4),
    "cosmos3_edge_text": replace(QWEN3_VL, theta=1e8, head_dim=128),
    "cohere_compass_text": replace(QWEN3_VL, theta=1e4, types={FULL: {}}, layers="F"),
    **family("qwen3_5_moe_text qwen3_5_text", QWEN3_NEXT, mrope=True, order="interleaved",
             sections=(11, 11, 10)),
    "qwen4_exp_text": replace(QWEN3_NEXT, fraction=1.0, layers="LLLI", mrope=True,
                              order="interleaved", sections=(11, 11, 10)),
    "hy_v4_vl_text": replace(MLA, mrope=True, order="interleaved", sections=(12, 10, 10)),
    "ernie4_5_vl_moe_text": replace(ADJACENT, theta=500_000.0, mrope=True, order="alternating",
                                    sections=(22, 22, 20)),
    **family("glm4v_moe_text glm_image_text", PARTIAL, mrope=True, sections=GLM_AXES),
    "glm4v_text": replace(ADJACENT, fraction=0.5, mrope=True, sections=GLM_AXES),
    "glm_ocr_text": replace(ADJACENT, fraction=1.0, mrope=True, sections=GLM_AXES),
    "hunyuan_vl_text": Family(mrope=True, sections=(), extra=HUNYUAN),
    "neomme": Family(
        head_dim=64, fraction=1.0, layers="SSSSSF|F", mrope=True, order="interleaved",
        sections=(1 << 16, 1 << 16),
        types={SLIDING: {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
               FULL: {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
    ),
    # Not rotations that this library makes ------------------------------------------------------
    **family("neucodec xcodec2", BY_HEAD),
    "qwen2_5_omni_dit": Family(refuse="it rotates the first head alone"),
}  # fmt: skip
