"""Model types whose positions no scheme says, each with the reason; and those that have none.

Models without attention to tokens (convolutional networks, vocoders, codecs) are named too: nothing
is guessed of them.
"""

from posenc.interop.families import Family

__all__ = ["REFUSED"]

CONVOLUTION = (
    "a grouped convolution over num_conv_pos_embeddings frames tells it positions, and the zeros "
    "beside them the ends; no scheme says that"
)
MIX_FFN = (
    "a 3 × 3 convolution of each channel inside every MLP tells it positions, and zeros the border; "
    "no scheme says that"
)
NO_TOKENS = (
    "it is a convolutional network, a codec or a vocoder: no attention, so no position in it"
)
OVERLAPPING = "convolutions within its blocks tell it positions; no scheme says that"
DETR = (
    "its keys have AxialSinusoidal(d_model) at normalised counts of real cells (AxialLearned where "
    "position_embedding_type is 'learned'), its queries Learned(num_queries, d_model), in every "
    "layer: build them by hand, as in the conformance page"
)
RT_DETR = (
    "AxialSinusoidal is added in the encoder layers of encode_proj_layers alone, and an MLP of each "
    "query's box in its decoder: build AxialSinusoidal by hand, as in the conformance page"
)
BOX_QUERIES = (
    "an MLP of sinusoids of its box is added to each query, and its keys are sampled at the box: "
    "build AxialSinusoidal(num_axes=4) by hand, as in the conformance page"
)
MASKS = (
    "its queries are Learned(num_queries, hidden), its keys have AxialSinusoidal at normalised "
    "counts and a vector for each scale: build them by hand, as in the conformance page"
)
NECK = (
    "its neck gives each feature map AxialSinusoidal of its cells, for other parts to add: build it "
    "by hand, as in the conformance page"
)
QUERIES = (
    "its queries have positions of their own, and its keys those of feature maps: build "
    "AxialSinusoidal by hand, as in the conformance page"
)
PROMPTS = (
    "it encodes points and corners of boxes, half a pixel on and scaled to [-1, 1], and adds a "
    "vector for each label: build RandomFourier by hand, as in the conformance page"
)
MASK_DECODER = (
    "it adds what the prompt encoder made, of points and of cells, to queries and keys in every "
    "layer, and has no position of its own"
)
BOXES = (
    "it adds projections of boxes, of what they cover and of the sinusoids of their centres: build "
    "AxialSinusoidal by hand, as in the conformance page"
)
INKLING = "vectors by distance meet states of its own, projected for that; Shaw has queries alone"
LAYERS_ONLY = "its tokens have no order: it is given queries that carry what they need"

_BY_REASON = {
    CONVOLUTION: "hubert omniasr_audio unispeech unispeech-sat wav2vec2",
    MIX_FFN: "glpn pvt_v2 segformer",
    NO_TOKENS: (
        "align_vision_model apertus1p5_vision_tokenizer bit chameleon_vqgan convnext convnextv2 dac "
        "dinov3_convnext efficientnet emu3_vqgan encodec fastspeech2_conformer_hifigan "
        "flava_image_codebook focalnet gemma3n_vision glm_image_vqmodel hgnet_v2 janus_vqgan "
        "mobilenet_v1 mobilenet_v2 poolformer pp_lcnet pp_lcnet_v3 pp_lcnet_v4 qwen2_5_omni_bigvgan "
        "regnet resnet rt_detr_resnet speecht5_hifigan superpoint textnet univnet uvdoc "
        "uvdoc_backbone vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder "
        "vibevoice_acoustic_tokenizer_encoder wavtokenizer wavtokenizer_encoder"
    ),
    OVERLAPPING: "inkling_audio inkling_vision muse_spark_audio",
    DETR: "detr table-transformer",
    RT_DETR: "d_fine rt_detr rt_detr_v2",
    BOX_QUERIES: "lw_detr rf_detr",
    MASKS: "mask2former oneformer",
    NECK: "edgetam_vision_model sam2_vision_model sam3_vision_model",
    QUERIES: (
        "deimv2 pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 sam3_detr_decoder sam3_detr_encoder "
        "sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder"
    ),
    PROMPTS: (
        "edgetam_prompt_encoder edgetam_video_prompt_encoder sam2_prompt_encoder "
        "sam2_video_prompt_encoder sam3_tracker_prompt_encoder sam3_tracker_video_prompt_encoder "
        "sam_hq_prompt_encoder sam_prompt_encoder"
    ),
    MASK_DECODER: (
        "edgetam_mask_decoder edgetam_video_mask_decoder sam2_mask_decoder sam2_video_mask_decoder "
        "sam3_tracker_mask_decoder sam3_tracker_video_mask_decoder sam_hq_mask_decoder "
        "sam_mask_decoder"
    ),
    BOXES: "sam3_geometry_encoder sam3_lite_text_geometry_encoder",
    INKLING: "inkling2_loop_text inkling2_text inkling_text",
    LAYERS_ONLY: "idefics2_perceiver idefics_perciever molmo2_adapter sapiens2_head",
}
_ALONE = {
    "blip_2_qformer": "its queries are learned states without an order; with use_qformer_text_input "
                      "text after them has Learned(max_position_embeddings, hidden_size), by hand",
    "bros": "sinusoids of differences between boxes meet the queries in its logits",
    "clvp_encoder": "it rotates values too, which no scheme does",
    "conditional_detr": "its keys have AxialSinusoidal(d_model) at normalised counts; sinusoids of a "
                        "point for each query are a second half of the heads' channels: by hand",
    "cvt": "its queries, keys and values are convolutions of the cells around them: that tells it "
           "positions, and no scheme says it",
    "cpmant": "its buckets depend on segments too",
    "dab-detr": "its keys have AxialSinusoidal with bases temperature_height and temperature_width, "
                "its queries sinusoids of learned boxes, stretched by what each has read: by hand",
    "data2vec-audio": "num_conv_pos_embeddings convolutions of conv_pos_kernel_size frames, one "
                      "after another, tell it positions; no scheme says that",
    "deformable_detr": "it adds AxialSinusoidal(d_model) at normalised counts less a half and a "
                       "vector for each scale, and samples keys around points: build it by hand",
    "dinat": "its bias is of neighbourhoods that shift at the border: SwinBias by hand",
    "esmfold2": "vectors of clipped distances describe pairs of tokens, not logits",
    "fastspeech2_conformer": "its stacks have sizes of their own: build TransformerXL("
                             "layout='alternating') for each by hand",
    "flava_multimodal_model": "it adds nothing to the states of text and image, which have their own",
    "florence_vision": "a 3 × 3 convolution of each channel before every attention and every MLP "
                       "tells it positions; no scheme says that",
    "fun_asr_nano_encoder": "it adds Sinusoidal(num_mel_bins * num_stacked_frames, offset=1, "
                            "denominator='d-2', layout='concatenated') to stacked frames, by hand",
    "funnel": "its layers pool, so each has positions of its own, and distances to its class token "
              "count as nothing: build TransformerXL by hand",
    "gemma4_unified_audio": "it projects frames: nothing tells positions before the language model",
    "gemma4_unified_vision": "it adds a table for each axis after a norm: build AxialLearned by hand",
    "hiera": "it adds one table of its first cells, Learned by hand, and then merges cells, so later "
             "layers have others",
    "lightglue": "it turns by learned projections of keypoints: build MixedRope by hand",
    "lxmert": "it has three stacks: text has Learned(max_position_embeddings, hidden_size), "
              "objects have their boxes",
    "maskformer": "its keys have AxialSinusoidal at normalised counts, its queries Learned, of the "
                  "sizes of decoder_config, in every layer of its decoder: by hand",
    "mllama_vision_model": "its tables of cells and of tiles are gated by learned numbers",
    "mobilevit": "its attention, over cells patch_size apart, has no positions: 3 × 3 convolutions "
                 "before and after it tell them, and no scheme says that",
    "mobilevitv2": "its attention is one sum over cells patch_size apart, without positions: 3 × 3 "
                   "convolutions before it tell them, and no scheme says that",
    "patchtsmixer": "its MLPs mix a fixed number of patches by place; use_positional_encoding adds a "
                    "table, or sinusoids less their mean over ten times their spread: by hand",
    "patchtst": "positional_encoding_type='sincos' is sinusoids less their mean over ten times their "
                "spread, so a vector depends on how many there are; 'random' is Learned, by hand",
    "perceiver": "inputs are encoded by preprocessors, which a config does not name: build "
                 "FourierBands or Learned by hand",
    "phi4_multimodal_audio": "it adds a learned number for each clipped distance",
    "prophetnet": "its decoder adds buckets of distance to a learned table",
    "pvt": "each of its stages adds a table of its own, to cells that the stage before has merged",
    "sam2_hiera_det_model": "it adds a small table of cells, enlarged by bicubic interpolation, and "
                            "a table of one window, repeated: build Learned for both by hand",
    "sew": "a grouped convolution over num_conv_pos_embeddings frames, at each squeeze_factor-th of "
           "them, tells it positions; no scheme says that",
    "speecht5": "a convolution and sinusoids with a learned amplitude are added in parts that it has "
                "several of: build Sinusoidal(dim, amplitude=alpha) and Shaw(head_dim, "
                "max_distance=(159, 160), values=False) by hand",
    "transfo-xl": "its code left transformers: build TransformerXL(n_head, d_head, dim=d_model, "
                  "clamp=clamp_len) by hand",
    "swiftformer": "its attention is one sum over all cells: 3 × 3 convolutions of each channel tell "
                   "positions, and no scheme says that",
    "tvp": "text has Learned(max_position_embeddings, hidden_size), cells the sum of a row's and a "
           "column's vector (AxialLearned(combine='added')), in one sequence: by hand",
    "udop": "it adds biases of two further axes to T5's",
    "vibevoice_diffusion": "it encodes diffusion times, no tokens: build Sinusoidal by hand",
    "videoprism_vision_model": "it adds a table of cells before one stack, of frames before another",
    "vilt": "text has Learned(max_position_embeddings, hidden_size), cells a table resized to each "
            "image, bilinear, and each kind a vector of its own, in one sequence: by hand",
    "vit_mae": "its table is AxialSinusoidal(hidden_size, layout='concatenated') at "
               "grid(side, side), saved with its weights; zeros for the class token",
    "wavlm": "its T5 bias (num_buckets, max_bucket_distance) is gated by the queries, and a "
             "convolution adds positions",
    "zoedepth": "its heads add a table to features of a backbone; name the backbone by part=",
    **dict.fromkeys(
        ("sam3_lite_text_mask_decoder", "sam3_mask_decoder"),
        "it joins queries and feature maps, and has no position of its own",
    ),
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
