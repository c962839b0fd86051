"""DeepSeek-V2: what Lite leaves out. Queries through a latent, experts of the best groups only,
scaled expert weights."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from deepseek_v2_lite import CONFIG as LITE  # noqa: E402

NAME = "deepseek-v2"
CONFIG = LITE | {
    "first_k_dense_replace": 0,
    "hidden_size": 48,
    "intermediate_size": 64,
    "kv_lora_rank": 36,
    "moe_intermediate_size": 20,
    "n_group": 3,
    "n_routed_experts": 9,
    "n_shared_experts": 1,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "q_lora_rank": 44,
    "qk_nope_head_dim": 16,
    "rope_scaling": None,
    "routed_scaling_factor": 2.5,
    "topk_group": 2,
    "topk_method": "group_limited_greedy",
    "v_head_dim": 16,
}


def routers(model):
    """Experts within the groups that were chosen, and the groups."""
    modules = [m for m in model.modules() if type(m).__name__ == "DeepseekV2TopkRouter"]
    groups, chosen = CONFIG["n_group"], CONFIG["topk_group"]

    def of_groups(_inputs, output):
        return output[0].softmax(-1).unflatten(-1, (groups, -1)).amax(-1), chosen

    def of_experts(inputs, output):
        best, count = of_groups(inputs, output)
        scores = output[0].softmax(-1).unflatten(-1, (groups, -1))
        kept = best >= best.topk(count).values[:, -1:]
        return (scores * kept[..., None]).flatten(-2), output[-1].shape[-1]

    return [(module, of) for module in modules for of in (of_groups, of_experts)]
