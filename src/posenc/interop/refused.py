"""Model types whose positions no scheme says, each with the reason; and those that have none.

Models without attention to tokens (convolutional networks, vocoders, codecs) are named too: nothing
is guessed of them.
"""

from posenc.interop.families import Family

__all__ = ["REFUSED"]

CONVOLUTION = (
    "a convolution over the hidden states tells it positions, and padding of that convolution the "
    "ends; no scheme says that"
)
NO_TOKENS = (
    "it is a convolutional network, a codec or a vocoder: no attention, so no position in it"
)
OVERLAPPING = "convolutions within its blocks tell it positions; no scheme says that"
QUERIES = (
    "its queries have positions of their own, and its keys those of feature maps: build "
    "AxialSinusoidal by hand, as in the conformance page"
)
BOXES = (
    "it encodes points and boxes: build RandomFourier or AxialSinusoidal by hand, as in the "
    "conformance page"
)
INKLING = "vectors by distance meet states of its own, projected for that; Shaw has queries alone"
STANDARDISED = (
    "its sinusoids are standardised over the whole table, so a vector depends on how many there are"
)
PYRAMID = "each of its stages adds a table of its own, to cells that the stage before has merged"
SEVERAL = "text and cells are added in one sequence: build Learned for each by hand"
LAYERS_ONLY = "its tokens have no order: it is given queries that carry what they need"

_BY_REASON = {
    CONVOLUTION: "data2vec-audio hubert omniasr_audio sew unispeech unispeech-sat wav2vec2",
    NO_TOKENS: (
        "align_vision_model apertus1p5_vision_tokenizer bit chameleon_vqgan convnext convnextv2 dac "
        "dinov3_convnext efficientnet emu3_vqgan encodec fastspeech2_conformer_hifigan "
        "flava_image_codebook focalnet gemma3n_vision glm_image_vqmodel hgnet_v2 janus_vqgan "
        "mobilenet_v1 mobilenet_v2 poolformer pp_lcnet pp_lcnet_v3 pp_lcnet_v4 qwen2_5_omni_bigvgan "
        "regnet resnet rt_detr_resnet speecht5_hifigan superpoint textnet univnet uvdoc "
        "uvdoc_backbone vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder "
        "vibevoice_acoustic_tokenizer_encoder wavtokenizer wavtokenizer_encoder"
    ),
    OVERLAPPING: (
        "cvt florence_vision glpn mobilevit mobilevitv2 pvt_v2 segformer swiftformer inkling_audio "
        "inkling_vision muse_spark_audio"
    ),
    QUERIES: (
        "conditional_detr d_fine dab-detr deformable_detr deimv2 detr edgetam_vision_model lw_detr "
        "mask2former maskformer oneformer pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 rf_detr "
        "rt_detr rt_detr_v2 sam2_vision_model sam3_detr_decoder sam3_detr_encoder "
        "sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder sam3_vision_model table-transformer"
    ),
    BOXES: (
        "edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder "
        "edgetam_video_prompt_encoder sam2_mask_decoder sam2_prompt_encoder sam2_video_mask_decoder "
        "sam2_video_prompt_encoder sam3_geometry_encoder sam3_lite_text_geometry_encoder "
        "sam3_lite_text_mask_decoder sam3_mask_decoder sam3_tracker_mask_decoder "
        "sam3_tracker_prompt_encoder sam3_tracker_video_mask_decoder "
        "sam3_tracker_video_prompt_encoder sam_hq_mask_decoder sam_hq_prompt_encoder "
        "sam_mask_decoder sam_prompt_encoder"
    ),
    INKLING: "inkling2_loop_text inkling2_text inkling_text",
    STANDARDISED: "patchtst patchtsmixer",
    PYRAMID: "hiera pvt sam2_hiera_det_model",
    SEVERAL: "tvp vilt",
    LAYERS_ONLY: (
        "blip_2_qformer flava_multimodal_model idefics2_perceiver idefics_perciever molmo2_adapter "
        "sapiens2_head"
    ),
}
_ALONE = {
    "bros": "sinusoids of differences between boxes meet the queries in its logits",
    "clvp_encoder": "it rotates values too, which no scheme does",
    "cpmant": "its buckets depend on segments too",
    "dinat": "its bias is of neighbourhoods that shift at the border: SwinBias by hand",
    "esmfold2": "vectors of clipped distances describe pairs of tokens, not logits",
    "fastspeech2_conformer": "its stacks have sizes of their own: build TransformerXL("
                             "layout='alternating') for each by hand",
    "fun_asr_nano_encoder": "it adds Sinusoidal(num_mel_bins * num_stacked_frames, offset=1, "
                            "denominator='d-2', layout='concatenated') to stacked frames, by hand",
    "funnel": "its layers pool, so each has positions of its own, and distances to its class token "
              "count as nothing: build TransformerXL by hand",
    "gemma4_unified_audio": "it projects frames: nothing tells positions before the language model",
    "gemma4_unified_vision": "it adds a table for each axis after a norm: build AxialLearned by hand",
    "lightglue": "it turns by learned projections of keypoints: build MixedRope by hand",
    "lxmert": "it has three stacks: text has Learned(max_position_embeddings, hidden_size), "
              "objects have their boxes",
    "mllama_vision_model": "its tables of cells and of tiles are gated by learned numbers",
    "perceiver": "inputs are encoded by preprocessors, which a config does not name: build "
                 "FourierBands or Learned by hand",
    "phi4_multimodal_audio": "it adds a learned number for each clipped distance",
    "prophetnet": "its decoder adds buckets of distance to a learned table",
    "speecht5": "a convolution and sinusoids with a learned amplitude are added in parts that it has "
                "several of: build Sinusoidal(dim, amplitude=alpha) and Shaw(head_dim, "
                "max_distance=(159, 160), values=False) by hand",
    "transfo-xl": "its code left transformers: build TransformerXL(n_head, d_head, dim=d_model, "
                  "clamp=clamp_len) by hand",
    "udop": "it adds biases of two further axes to T5's",
    "vibevoice_diffusion": "it encodes diffusion times, no tokens: build Sinusoidal by hand",
    "videoprism_vision_model": "it adds a table of cells before one stack, of frames before another",
    "vit_mae": "its table is AxialSinusoidal(hidden_size, layout='concatenated') at "
               "grid(side, side), saved with its weights; zeros for the class token",
    "wavlm": "its T5 bias (num_buckets, max_bucket_distance) is gated by the queries, and a "
             "convolution adds positions",
    "zoedepth": "its heads add a table to features of a backbone; name the backbone by part=",
    **dict.fromkeys(
        ("timm_backbone", "timm_wrapper"), "a model of timm: its config does not say which positions"
    ),
}  # fmt: skip

REFUSED: dict[str, Family] = {
    **{
        name: Family(refuse=why)
        for why, names in _BY_REASON.items()
        for name in names.split()
    },
    **{name: Family(refuse=why) for name, why in _ALONE.items()},
}  # fmt: skip
