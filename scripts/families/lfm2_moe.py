"""LFM2-MoE: gated short convolutions, attention in one layer of four, a dense layer first, sigmoid scores with a bias
for the choice, and a head that is the embedding."""
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

NAME = "lfm2-moe"
CONFIG = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "eos_token_id": 7,
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "max_position_embeddings": 512,
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 16,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 5,
    "num_dense_layers": 1,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0,
    "tie_embedding": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_expert_bias": True,
    "vocab_size": 512,
}
LENGTHS = [70, 23]
SEED = 1430


def weight(name, parameter, generator, seed=SEED):
    """Routers by a seed of their own: near ties say nothing (docs/adding-a-family.md)."""
    values = torch.randn(parameter.shape, generator=generator)
    if name.endswith("feed_forward.gate.weight"):
        own = torch.Generator().manual_seed(seed + int(name.split(".")[2]))
        return 1.5 * torch.randn(parameter.shape, generator=own) / parameter.shape[-1] ** 0.5
    if "embed_tokens" in name:
        # It is the head as well.
        return 0.4 * values
    if name.endswith("conv.conv.weight"):
        return 0.6 * values
    if ".experts." in name:
        return 0.6 * values / parameter.shape[-1] ** 0.5
    return None


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    for layer, block in enumerate(model.model.layers):
        if hasattr(block.feed_forward, "expert_bias"):
            own = torch.Generator().manual_seed(SEED + layer)
            values = 0.1 * torch.randn(config["num_experts"], generator=own)
            block.feed_forward.expert_bias.copy_(values.bfloat16())
    return model


def publish(directory):
    """Biases of experts are published in float32."""
    for path in directory.glob("*.safetensors"):
        tensors = load_file(path)
        exact = {name: value.float() for name, value in tensors.items() if name.endswith("expert_bias")}
        save_file(tensors | exact, path, metadata={"format": "pt"})


def routers(model):
    blocks = [m for m in model.modules() if type(m).__name__ == "Lfm2MoeSparseMoeBlock"]

    def scores(block):
        bias = block.expert_bias if block.use_expert_bias else 0
        return block.gate, lambda _, output: (output[0].sigmoid() + bias, output[-1].shape[-1])

    return [scores(block) for block in blocks]
