//! Model families.

/// A model family, with one interpretation of `config.json` and one tensor naming scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// `AfmoeForCausalLM`: Trinity.
    Afmoe,
    /// `BailingMoeV2ForCausalLM`: Ling 2.0 and Ring 2.0.
    BailingMoeV2,
    /// `Qwen3MoeForCausalLM`.
    Qwen3Moe,
    /// `LlamaForCausalLM`, dense: Llama 2 and 3, SmolLM2.
    Llama,
    /// `MistralForCausalLM`, dense.
    Mistral,
    /// `Qwen2ForCausalLM`, dense: Qwen2 and Qwen2.5.
    Qwen2,
    /// `Qwen3ForCausalLM`, dense.
    Qwen3,
    /// `Gemma3ForCausalLM`, dense: text models of Gemma 3.
    Gemma3Text,
    /// `GraniteForCausalLM`, dense.
    Granite,
    /// `OlmoeForCausalLM`.
    Olmoe,
    /// `MixtralForCausalLM`.
    Mixtral,
    /// `GptOssForCausalLM`.
    GptOss,
    /// `GraniteMoeForCausalLM`.
    GraniteMoe,
    /// `GraniteMoeSharedForCausalLM`.
    GraniteMoeShared,
    /// `GraniteMoeHybridForCausalLM`, with or without experts.
    GraniteMoeHybrid,
    /// `Qwen2MoeForCausalLM`.
    Qwen2Moe,
    /// `DeepseekV2ForCausalLM`.
    DeepseekV2,
    /// `DeepseekV3ForCausalLM`.
    DeepseekV3,
    /// `DeepseekV3ForCausalLM` with the model type `kimi_k2`.
    KimiK2,
    /// `DeepseekV32ForCausalLM`.
    DeepseekV32,
    /// `GlmMoeDsaForCausalLM`: GLM-5.
    GlmMoeDsa,
    /// `Dots1ForCausalLM`.
    Dots1,
    /// `Ernie4_5_MoeForCausalLM`.
    Ernie45Moe,
    /// `ExaoneMoeForCausalLM`: K-EXAONE.
    ExaoneMoe,
    /// `SolarOpenForCausalLM`.
    SolarOpen,
    /// `HunYuanMoEV1ForCausalLM`: Hunyuan-A13B.
    HunyuanV1Moe,
    /// `LagunaForCausalLM`.
    Laguna,
    /// `Lfm2ForCausalLM`, dense.
    Lfm2,
    /// `Lfm2MoeForCausalLM`.
    Lfm2Moe,
    /// `NemotronHForCausalLM`: Nemotron-H and Nemotron-3.
    NemotronH,
    /// `MiniMaxM2ForCausalLM`.
    MiniMaxM2,
    /// `Glm4MoeForCausalLM`.
    Glm4Moe,
    /// `Glm4MoeLiteForCausalLM`.
    Glm4MoeLite,
    /// `Qwen3VLMoeForConditionalGeneration`, text part.
    Qwen3VlMoe,
    /// `Qwen3OmniMoeForConditionalGeneration`, text part of the thinker.
    Qwen3OmniMoe,
    /// `Qwen3NextForCausalLM`.
    Qwen3Next,
    /// `Qwen3_5MoeForConditionalGeneration`, text part: Qwen3.5 and Qwen3.6.
    Qwen35Moe,
    /// `Gemma4ForConditionalGeneration`, text part.
    Gemma4,
    /// `Gemma4ForCausalLM`, a text part in a separate checkpoint.
    Gemma4Text,
    /// `Qwen3_5MoeForCausalLM`, a text part in a separate checkpoint.
    Qwen35MoeText,
}

impl Architecture {
    /// Returns true if the family consists of dense models: no layer is a mixture of experts.
    pub const fn is_dense(self) -> bool {
        matches!(
            self,
            Self::Llama
                | Self::Mistral
                | Self::Qwen2
                | Self::Qwen3
                | Self::Gemma3Text
                | Self::Granite
                | Self::Lfm2
        )
    }
}
