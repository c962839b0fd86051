//! The names of families.

/// A family of models: one reading of `config.json` and one set of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// `BailingMoeV2ForCausalLM`: Ling 2.0 and Ring 2.0.
    BailingMoeV2,
    /// `Qwen3MoeForCausalLM`.
    Qwen3Moe,
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
    /// `Qwen2MoeForCausalLM`.
    Qwen2Moe,
    /// `DeepseekV2ForCausalLM`.
    DeepseekV2,
    /// `DeepseekV3ForCausalLM`.
    DeepseekV3,
    /// `DeepseekV3ForCausalLM` of the type `kimi_k2`.
    KimiK2,
    /// `Dots1ForCausalLM`.
    Dots1,
    /// `Ernie4_5_MoeForCausalLM`.
    Ernie45Moe,
    /// `SolarOpenForCausalLM`.
    SolarOpen,
    /// `MiniMaxM2ForCausalLM`.
    MiniMaxM2,
    /// `Glm4MoeForCausalLM`.
    Glm4Moe,
    /// `Glm4MoeLiteForCausalLM`.
    Glm4MoeLite,
    /// `Qwen3VLMoeForConditionalGeneration`: its text part.
    Qwen3VlMoe,
    /// `Qwen3OmniMoeForConditionalGeneration`: the text part of what thinks.
    Qwen3OmniMoe,
    /// `Qwen3NextForCausalLM`.
    Qwen3Next,
    /// `Qwen3_5MoeForConditionalGeneration`: Qwen3.5 and Qwen3.6, their text part.
    Qwen35Moe,
    /// The text part of `Gemma4ForConditionalGeneration`.
    Gemma4,
    /// `Gemma4ForCausalLM`: the text part alone.
    Gemma4Text,
    /// `Qwen3_5MoeForCausalLM`: the text part alone.
    Qwen35MoeText,
}
