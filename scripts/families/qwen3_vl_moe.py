"""Qwen3-VL-MoE: Qwen3-MoE beside a part for images, which is there to be passed over; all experts of a layer
in one tensor that is turned over, as published."""
from safetensors.torch import load_file, save_file

NAME = "qwen3-vl-moe"
TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "decoder_sparse_step": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "max_position_embeddings": 256,
    "mlp_only_layers": [],
    "model_type": "qwen3_vl_moe_text",
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
    "rope_theta": 5000000,
    "use_cache": True,
    "vocab_size": 512,
}
VISION = {
    "deepstack_visual_indexes": [0],
    "depth": 1,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 16,
    "in_channels": 3,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "model_type": "qwen3_vl_moe",
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 40,
    "patch_size": 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
CONFIG = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "image_token_id": 508,
    "model_type": "qwen3_vl_moe",
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "video_token_id": 509,
    "vision_config": VISION,
    "vision_end_token_id": 511,
    "vision_start_token_id": 510,
}
LENGTHS = [60, 15]
SHARD = "150KB"


def build(config):
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration
    return Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(**config))


def load(directory, **options):
    from transformers import Qwen3VLMoeForConditionalGeneration
    return Qwen3VLMoeForConditionalGeneration.from_pretrained(directory, **options)


def publish(directory):
    """Turns experts over, where they are not as published."""
    width = TEXT["moe_intermediate_size"]
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name.endswith("experts.down_proj") and tensor.shape[1] != width:
                tensors[name] = tensor.transpose(1, 2).contiguous()
            if name.endswith("experts.gate_up_proj") and tensor.shape[2] != 2 * width:
                tensors[name] = tensor.transpose(1, 2).contiguous()
        save_file(tensors, file, metadata={"format": "pt"})
