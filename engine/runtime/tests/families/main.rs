//! All model families: agreement with transformers in float32, conversion, streaming and sessions.
//!
//! The checkpoints are tiny and have the published layout.

#[cfg(test)]
mod dense;
#[cfg(test)]
mod gpt_oss;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hidden;
#[cfg(test)]
mod judged;
#[cfg(test)]
mod longrope;
#[cfg(test)]
mod saved_again;
#[cfg(test)]
mod text_alone;

/// Defines the tests of a family, with data in `tests/data/families/<name>` and `<name>-golden`.
macro_rules! family {
    ($module:ident, $name:literal) => {
        #[cfg(test)]
        mod $module {
            use crate::harness;

            #[test]
            fn agrees_with_transformers() {
                harness::agrees_with_transformers($name);
            }

            #[test]
            fn has_the_same_bits_however_it_is_computed() {
                harness::has_the_same_bits_however_it_is_computed($name);
            }

            #[test]
            fn is_converted_and_streamed() {
                harness::is_converted_and_streamed($name);
            }

            #[test]
            fn keeps_sessions() {
                harness::keeps_sessions($name);
            }
        }
    };
}

/// Calibration of a family; of most, `.ci/deep` runs it.
macro_rules! calibration {
    ($($(#[$ignored:meta])? $module:ident: $name:literal,)*) => {
        #[cfg(test)]
        mod is_calibrated {
            use crate::harness;
            $(#[test] $(#[$ignored])? fn $module() { harness::is_calibrated($name); })*
        }
    };
}

family!(afmoe, "afmoe");
family!(bailing_moe_v2, "bailing-moe-v2");
family!(deepseek_v2, "deepseek-v2");
family!(deepseek_v2_lite, "deepseek-v2-lite");
family!(deepseek_v3, "deepseek-v3");
family!(deepseek_v32, "deepseek-v32");
family!(dots1, "dots1");
family!(ernie4_5_moe, "ernie4-5-moe");
family!(exaone_moe, "exaone-moe");
family!(glm4_moe, "glm4-moe");
family!(glm4_moe_lite, "glm4-moe-lite");
family!(gemma3, "gemma3");
family!(gemma4, "gemma4");
family!(glm_moe_dsa, "glm-moe-dsa");
family!(gpt_oss_mxfp4, "gpt-oss");
family!(gpt_oss_bf16, "gpt-oss-bf16");
family!(granite, "granite");
family!(granite_moe, "granite-moe");
family!(granite_moe_bias, "granite-moe-bias");
family!(granite_moe_hybrid, "granite-moe-hybrid");
family!(granite_moe_hybrid_dense, "granite-moe-hybrid-dense");
family!(nemotron_h, "nemotron-h");
family!(nemotron_h_dense, "nemotron-h-dense");
family!(granite_moe_shared, "granite-moe-shared");
family!(kimi_k2, "kimi-k2");
family!(hunyuan_v1_moe, "hunyuan-v1-moe");
family!(laguna, "laguna");
family!(lfm2, "lfm2");
family!(lfm2_moe, "lfm2-moe");
family!(lfm2_moe_bias, "lfm2-moe-bias");
family!(llama, "llama");
family!(llama_bias, "llama-bias");
family!(minimax_m2, "minimax-m2");
family!(mistral, "mistral");
family!(mixtral, "mixtral");
family!(olmoe, "olmoe");
family!(qwen2, "qwen2");
family!(qwen2_moe, "qwen2-moe");
family!(qwen3, "qwen3");
family!(qwen3_5_moe, "qwen3-5-moe");
family!(qwen3_next, "qwen3-next");
family!(qwen3_next_bias, "qwen3-next-bias");
family!(qwen3_omni_moe, "qwen3-omni-moe");
family!(qwen3_vl_moe, "qwen3-vl-moe");
family!(solar_open, "solar-open");

calibration! {
    afmoe: "afmoe",
    #[ignore = "slow"] bailing_moe_v2: "bailing-moe-v2",
    #[ignore = "slow"] deepseek_v2: "deepseek-v2",
    #[ignore = "slow"] deepseek_v2_lite: "deepseek-v2-lite",
    deepseek_v3: "deepseek-v3",
    #[ignore = "slow"] deepseek_v32: "deepseek-v32",
    #[ignore = "slow"] dots1: "dots1",
    #[ignore = "slow"] ernie4_5_moe: "ernie4-5-moe",
    #[ignore = "slow"] exaone_moe: "exaone-moe",
    #[ignore = "slow"] glm4_moe: "glm4-moe",
    #[ignore = "slow"] glm4_moe_lite: "glm4-moe-lite",
    gemma3: "gemma3",
    gemma4: "gemma4",
    #[ignore = "slow"] glm_moe_dsa: "glm-moe-dsa",
    gpt_oss_mxfp4: "gpt-oss",
    #[ignore = "slow"] gpt_oss_bf16: "gpt-oss-bf16",
    #[ignore = "slow"] granite: "granite",
    #[ignore = "slow"] granite_moe: "granite-moe",
    #[ignore = "slow"] granite_moe_bias: "granite-moe-bias",
    granite_moe_hybrid: "granite-moe-hybrid",
    #[ignore = "slow"] granite_moe_hybrid_dense: "granite-moe-hybrid-dense",
    nemotron_h: "nemotron-h",
    #[ignore = "slow"] nemotron_h_dense: "nemotron-h-dense",
    #[ignore = "slow"] granite_moe_shared: "granite-moe-shared",
    #[ignore = "slow"] kimi_k2: "kimi-k2",
    hunyuan_v1_moe: "hunyuan-v1-moe",
    laguna: "laguna",
    #[ignore = "slow"] lfm2: "lfm2",
    lfm2_moe: "lfm2-moe",
    #[ignore = "slow"] lfm2_moe_bias: "lfm2-moe-bias",
    llama: "llama",
    #[ignore = "slow"] llama_bias: "llama-bias",
    #[ignore = "slow"] minimax_m2: "minimax-m2",
    #[ignore = "slow"] mistral: "mistral",
    #[ignore = "slow"] mixtral: "mixtral",
    #[ignore = "slow"] olmoe: "olmoe",
    #[ignore = "slow"] qwen2: "qwen2",
    #[ignore = "slow"] qwen2_moe: "qwen2-moe",
    #[ignore = "slow"] qwen3: "qwen3",
    #[ignore = "slow"] qwen3_5_moe: "qwen3-5-moe",
    qwen3_next: "qwen3-next",
    #[ignore = "slow"] qwen3_next_bias: "qwen3-next-bias",
    #[ignore = "slow"] qwen3_omni_moe: "qwen3-omni-moe",
    #[ignore = "slow"] qwen3_vl_moe: "qwen3-vl-moe",
    #[ignore = "slow"] solar_open: "solar-open",
}
