"""GLM-4.7-Flash: latents for queries too, sigmoid scores with a selection bias and groups, a head
that predicts a second token and is ignored."""
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

NAME = "glm4-moe-lite"
CONFIG = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "eos_token_id": [2, 0],
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 56,
    "intermediate_size": 84,
    "kv_lora_rank": 40,
    "max_position_embeddings": 256,
    "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 20,
    "n_group": 3,
    "n_routed_experts": 9,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 5,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 5,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 44,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "v_head_dim": 20,
    "vocab_size": 512,
}


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    fill_biases(model, 25)
    return model


def fill_biases(model, seed):
    """The biases for the choice. Of many seeds, one whose routers are never near a tie: where int8
    activations choose others, a mean divergence says nothing else."""
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


def quiet_experts(name, parameter, generator):
    """Routed experts that do not outweigh all else, since rounding now and then changes which are chosen."""
    if ".experts." not in name:
        return None
    values = torch.randn(parameter.shape, generator=generator)
    return 0.8 * values / parameter.shape[-1] ** 0.5


def publish(directory):
    add_prediction_layer(directory, CONFIG)


def add_prediction_layer(directory, config):
    """Adds some tensors of the layer that predicts a second token, and biases in float32."""
    layer, hidden = f"model.layers.{config['num_hidden_layers']}", config["hidden_size"]
    generator = torch.Generator().manual_seed(8)
    extra = {
        f"{layer}.eh_proj.weight": torch.randn(hidden, 2 * hidden, generator=generator).bfloat16(),
        f"{layer}.enorm.weight": torch.ones(hidden).bfloat16(),
        f"{layer}.hnorm.weight": torch.ones(hidden).bfloat16(),
        f"{layer}.mlp.gate.e_score_correction_bias": torch.zeros(config["n_routed_experts"]),
        f"{layer}.shared_head.norm.weight": torch.ones(hidden).bfloat16(),
    }
    last = sorted(directory.glob("*.safetensors"))[-1]
    save_file(load_file(last) | extra, last, metadata={"format": "pt"})
    index = directory / "model.safetensors.index.json"
    text = index.read_text(encoding="utf-8")
    names = "".join(f'    "{name}": "{last.name}",\n' for name in extra)
    index.write_text(text.replace('  "weight_map": {\n', '  "weight_map": {\n' + names), "utf-8")
    exact_biases(directory)


def exact_biases(directory):
    """The biases for the choice in float32, as they are published."""
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        biases = {n: t.float() for n, t in tensors.items() if n.endswith("correction_bias")}
        if biases:
            save_file(tensors | biases, file, metadata={"format": "pt"})


def routers(model):
    return group_routers(model, "Glm4MoeLiteTopkRouter", CONFIG)


def group_routers(model, name, config):
    """Experts within the groups that were chosen, and the groups."""
    modules = [m for m in model.modules() if type(m).__name__ == name]
    groups, chosen = config["n_group"], config["topk_group"]
    if groups == chosen:
        # All experts are in one group.
        def plain(module):
            return module, lambda _, output: (
                output[0].sigmoid() + module.e_score_correction_bias, output[-1].shape[-1],
            )

        return [plain(module) for module in modules]

    def pair(module):
        def scores(output):
            scores = output[0].sigmoid() + module.e_score_correction_bias
            return scores.unflatten(-1, (groups, -1))

        def of_groups(_inputs, output):
            return scores(output).topk(2).values.sum(-1), chosen

        def of_experts(inputs, output):
            best, count = of_groups(inputs, output)
            kept = best >= best.topk(count).values[:, -1:]
            masked = scores(output).masked_fill(~kept[..., None], float("-inf"))
            return masked.flatten(-2), output[-1].shape[-1]

        return [(module, of_groups), (module, of_experts)]

    return [entry for module in modules for entry in pair(module)]
