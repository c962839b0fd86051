"""K-EXAONE: windows with RoPE and full layers without, norms of heads, DeepSeek-V3's experts with groups and two shared experts, a
dense first layer, and the part that predicts a second token, which is ignored."""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "exaone-moe"
CONFIG = {
    "architectures": ["ExaoneMoeForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 7,
    "first_k_dense_replace": 1,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "is_moe_layer": [False, True, True, True],
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 256,
    "model_type": "exaone_moe",
    "moe_intermediate_size": 16,
    "n_group": 3,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts": 9,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "sliding_window": 24,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"
SEED = 5


def weight(name, parameter, generator):
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    glm.fill_biases(model, SEED)
    return model


def publish(directory):
    """Adds some tensors of the part that predicts a second token, and has the biases in float32."""
    hidden = CONFIG["hidden_size"]
    generator = torch.Generator().manual_seed(8)
    extra = {
        "mtp.fc.weight": torch.randn(hidden, 2 * hidden, generator=generator).bfloat16(),
        "mtp.layers.0.input_layernorm.weight": torch.ones(hidden).bfloat16(),
        "mtp.norm.weight": torch.ones(hidden).bfloat16(),
        "mtp.pre_fc_norm_embedding.weight": torch.ones(hidden).bfloat16(),
        "mtp.pre_fc_norm_hidden.weight": torch.ones(hidden).bfloat16(),
    }
    last = sorted(directory.glob("*.safetensors"))[-1]
    save_file(load_file(last) | extra, last, metadata={"format": "pt"})
    index = directory / "model.safetensors.index.json"
    text = index.read_text(encoding="utf-8")
    names = "".join(f'    "{name}": "{last.name}",\n' for name in extra)
    index.write_text(text.replace('  "weight_map": {\n', '  "weight_map": {\n' + names), "utf-8")
    glm.exact_biases(directory)


def routers(model):
    return glm.group_routers(model, "ExaoneMoeTopkRouter", CONFIG)
