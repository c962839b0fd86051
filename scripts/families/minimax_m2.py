"""MiniMax-M2: norms over all heads together, part of every head is turned, sigmoid scores with a bias for
the choice, Mixtral's names."""
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "minimax-m2"
CONFIG = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "attention_dropout": 0.0,
    "attn_type_list": [1, 1],
    "bos_token_id": None,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 256,
    "mlp_intermediate_size": 96,
    "model_type": "minimax_m2",
    "mtp_transformer_layers": 1,
    "num_attention_heads": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 7,
    "num_mtp_modules": 3,
    "output_router_logits": False,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 12,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"


def weight(name, parameter, generator):
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    glm.fill_biases(model, 5)
    return model


def publish(directory):
    glm.exact_biases(directory)


def routers(model):
    blocks = [m for m in model.modules() if type(m).__name__ == "MiniMaxM2SparseMoeBlock"]

    def scores(block):
        return lambda _, output: (output[0].sigmoid() + block.e_score_correction_bias, output[-1].shape[-1])

    return [(block.gate, scores(block)) for block in blocks]
