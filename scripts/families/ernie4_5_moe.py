"""ERNIE-4.5: neighbours in a head are turned with each other, softmax scores with a bias for the choice, shared
experts, a dense layer first, and parts that predict a second token and are ignored."""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "ernie4-5-moe"
CONFIG = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 40,
    "intermediate_size": 56,
    "max_position_embeddings": 256,
    "model_type": "ernie4_5_moe",
    "moe_capacity": [7, 7, 7],
    "moe_gate": "topk",
    "moe_intermediate_size": 16,
    "moe_k": 3,
    "moe_layer_end_index": 2,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_norm_min": 1e-12,
    "moe_num_experts": 7,
    "moe_num_shared_experts": 2,
    "moe_use_aux_free": True,
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "use_rmsnorm": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"
SEED = 5


def weight(name, parameter, generator):
    if name.endswith("correction_bias"):
        # Drawn by a seed of its own: near ties of routers say nothing (docs/adding-a-family.md).
        own = torch.Generator().manual_seed(SEED + int(name.split(".")[2]))
        return 0.1 * torch.randn(parameter.shape, generator=own)
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


def publish(directory):
    """Adds some of the tensors that predict a second token, and biases in float32."""
    hidden = CONFIG["hidden_size"]
    generator = torch.Generator().manual_seed(8)
    extra = {
        "model.mtp_linear_proj.0.weight": torch.randn(hidden, 2 * hidden, generator=generator).bfloat16(),
        "model.mtp_emb_norm.0.weight": torch.ones(hidden).bfloat16(),
        "model.mtp_hidden_norm.0.weight": torch.ones(hidden).bfloat16(),
        "model.mtp_block.0.input_layernorm.weight": torch.ones(hidden).bfloat16(),
    }
    last = sorted(directory.glob("*.safetensors"))[-1]
    save_file(load_file(last) | extra, last, metadata={"format": "pt"})
    index = directory / "model.safetensors.index.json"
    text = index.read_text(encoding="utf-8")
    names = "".join(f'    "{name}": "{last.name}",\n' for name in extra)
    index.write_text(text.replace('  "weight_map": {\n', '  "weight_map": {\n' + names), "utf-8")
    glm.exact_biases(directory)


def routers(model):
    modules = [m for m in model.modules() if type(m).__name__ == "Ernie4_5_MoeTopKRouter"]

    def scores(module):
        return module, lambda _, output: (module.moe_statics(output[0].softmax(-1)), output[-1].shape[-1])

    return [scores(module) for module in modules]
