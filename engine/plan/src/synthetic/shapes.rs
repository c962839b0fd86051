//! Shapes of published models.

use serde_json::{Map, Value};

/// Shape of a synthetic model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticShape {
    /// Name of the model.
    pub name: &'static str,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Keys of `config.json` that define the graph, besides the number of layers. Source: the files published
    /// with the models.
    pub(super) keys: &'static str,
}

impl SyntheticShape {
    /// OLMoE-1B-7B-0924, with the head norms of Qwen3-MoE.
    pub const OLMOE_1B_7B: Self = Self {
        name: "olmoe-1b-7b",
        num_hidden_layers: 16,
        keys: r#"{
            "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048,
            "intermediate_size": 1024, "max_position_embeddings": 4096,
            "moe_intermediate_size": 1024, "norm_topk_prob": true, "num_attention_heads": 16,
            "num_experts": 64, "num_experts_per_tok": 8, "num_key_value_heads": 16,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 50304
        }"#,
    };

    /// Qwen3-30B-A3B.
    pub const QWEN3_30B_A3B: Self = Self {
        name: "qwen3-30b-a3b",
        num_hidden_layers: 48,
        keys: r#"{
            "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048,
            "intermediate_size": 768, "max_position_embeddings": 40960,
            "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
            "num_experts": 128, "num_experts_per_tok": 8, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "vocab_size": 151936
        }"#,
    };

    /// DeepSeek-V2-Lite: latent attention, shared experts, a dense first layer.
    pub const DEEPSEEK_V2_LITE: Self = Self {
        name: "deepseek-v2-lite",
        num_hidden_layers: 27,
        keys: r#"{
            "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048,
            "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
            "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
            "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
            "num_attention_heads": 16, "num_experts_per_tok": 6, "num_key_value_heads": 16,
            "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-6, "rope_scaling": {
                "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096
            },
            "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
            "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400
        }"#,
    };

    /// GLM-4.7-Flash: latent attention with latent queries, sigmoid scores, a dense first layer.
    pub const GLM_4_7_FLASH: Self = Self {
        name: "glm-4.7-flash",
        num_hidden_layers: 47,
        keys: r#"{
            "model_type": "glm4_moe_lite", "first_k_dense_replace": 1, "hidden_size": 2048,
            "intermediate_size": 10240, "kv_lora_rank": 512, "max_position_embeddings": 202752,
            "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64,
            "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 20,
            "num_experts_per_tok": 4, "num_key_value_heads": 20, "partial_rotary_factor": 1.0,
            "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-5, "rope_theta": 1000000, "routed_scaling_factor": 1.8,
            "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880
        }"#,
    };

    /// gpt-oss-20b: windows, sinks, biases of experts.
    pub const GPT_OSS_20B: Self = Self {
        name: "gpt-oss-20b",
        num_hidden_layers: 24,
        keys: r#"{
            "model_type": "gpt_oss", "attention_bias": true, "head_dim": 64, "hidden_size": 2880,
            "intermediate_size": 2880, "max_position_embeddings": 131072,
            "num_attention_heads": 64, "num_experts_per_tok": 4, "num_key_value_heads": 8,
            "num_local_experts": 32, "rms_norm_eps": 1e-5, "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "original_max_position_embeddings": 4096, "truncate": false
            },
            "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "vocab_size": 201088
        }"#,
    };

    /// Qwen3-Next-80B-A3B: three layers of gated DeltaNet to one of gated attention.
    pub const QWEN3_NEXT_80B_A3B: Self = Self {
        name: "qwen3-next-80b-a3b",
        num_hidden_layers: 48,
        keys: r#"{
            "model_type": "qwen3_next", "full_attention_interval": 4, "head_dim": 256,
            "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128,
            "max_position_embeddings": 262144, "moe_intermediate_size": 512,
            "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
            "num_experts_per_tok": 10, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
            "rms_norm_eps": 1e-6, "rope_theta": 10000000,
            "shared_expert_intermediate_size": 512, "vocab_size": 151936
        }"#,
    };

    /// LFM2-8B-A1B: gated short convolutions, attention in six layers, two dense layers.
    pub const LFM2_8B_A1B: Self = Self {
        name: "lfm2-8b-a1b",
        num_hidden_layers: 24,
        keys: r#"{
            "model_type": "lfm2_moe", "conv_L_cache": 3, "conv_bias": false, "hidden_size": 2048,
            "intermediate_size": 7168, "layer_types": [
                "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv",
                "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv",
                "conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "conv"
            ],
            "max_position_embeddings": 128000, "moe_intermediate_size": 1792, "norm_eps": 1e-5,
            "norm_topk_prob": true, "num_attention_heads": 32, "num_dense_layers": 2,
            "num_experts": 32, "num_experts_per_tok": 4, "num_key_value_heads": 8,
            "rope_theta": 1000000, "routed_scaling_factor": 1.0, "use_expert_bias": true,
            "vocab_size": 65536
        }"#,
    };

    /// Granite 4 H-Tiny: Mamba-2, attention in four layers, a shared expert.
    pub const GRANITE_4_H_TINY: Self = Self {
        name: "granite-4.0-h-tiny",
        num_hidden_layers: 40,
        keys: r#"{
            "model_type": "granitemoehybrid", "attention_multiplier": 0.0078125,
            "embedding_multiplier": 12, "hidden_size": 1536, "intermediate_size": 512,
            "layer_types": [
                "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba",
                "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba",
                "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba",
                "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention",
                "mamba", "mamba", "mamba", "mamba"
            ],
            "logits_scaling": 6, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
            "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48,
            "max_position_embeddings": 131072, "num_attention_heads": 12,
            "num_experts_per_tok": 6, "num_key_value_heads": 4, "num_local_experts": 64,
            "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-5,
            "shared_intermediate_size": 1024, "vocab_size": 100352
        }"#,
    };

    /// Tiny model for quick experiments.
    pub const TINY: Self = Self {
        name: "tiny",
        num_hidden_layers: 2,
        keys: r#"{
            "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 512,
            "intermediate_size": 256, "max_position_embeddings": 4096,
            "moe_intermediate_size": 256, "norm_topk_prob": true, "num_attention_heads": 4,
            "num_experts": 16, "num_experts_per_tok": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "vocab_size": 1024
        }"#,
    };

    /// All shapes.
    pub const ALL: [Self; 9] = [
        Self::OLMOE_1B_7B,
        Self::QWEN3_30B_A3B,
        Self::DEEPSEEK_V2_LITE,
        Self::GLM_4_7_FLASH,
        Self::GPT_OSS_20B,
        Self::QWEN3_NEXT_80B_A3B,
        Self::LFM2_8B_A1B,
        Self::GRANITE_4_H_TINY,
        Self::TINY,
    ];

    /// Returns the shape with another number of layers.
    #[must_use]
    pub fn with_layers(self, num_hidden_layers: usize) -> Self {
        Self { num_hidden_layers, ..self }
    }

    /// Returns the `config.json`, with `end_token` as the end-of-text token.
    ///
    /// # Errors
    /// Returns an error if the keys are not a JSON object.
    pub(super) fn config(&self, end_token: u32) -> Result<Value, serde_json::Error> {
        let mut keys: Map<String, Value> = serde_json::from_str(self.keys)?;
        if let Some(Value::Array(kinds)) = keys.get_mut("layer_types") {
            kinds.truncate(self.num_hidden_layers);
        }
        keys.insert("eos_token_id".into(), end_token.into());
        keys.insert("hidden_act".into(), "silu".into());
        keys.insert("num_hidden_layers".into(), self.num_hidden_layers.into());
        keys.insert("tie_word_embeddings".into(), false.into());
        Ok(Value::Object(keys))
    }
}
