use nestling_formats::MatrixKind;

use super::*;

fn config(model: &str) -> ModelConfig {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/tests/data");
    let bytes = std::fs::read(format!("{data}/{model}/config.json")).unwrap();
    ModelConfig::from_json("config.json", &bytes).unwrap()
}

#[test]
fn levels_below_six_hardly_count_outside_of_experts() {
    let matrix = |expert| MatrixId { kind: MatrixKind::Down, layer: Some(0), expert };
    let (routed, dense) = (config("tiny-qwen3-moe"), config("families/llama"));
    let weights = |options: &ConvertOptions, expert, model| {
        let quantize = options.quantize_of(matrix(expert), model);
        [quantize.level_weights, quantize.calibrated.level_weights]
    };
    let mut options = ConvertOptions::default();
    let given = options.quantize.clone();
    let plain = [given.level_weights, given.calibrated.level_weights];
    assert_eq!(weights(&options, None, &routed), [SHARED_LEVEL_WEIGHTS; 2]);
    assert_eq!(weights(&options, None, &dense), plain);
    assert_eq!(weights(&options, Some(1), &routed), [plain[0], EXPERT_LEVEL_WEIGHTS]);
    options.expert_level_weights = Some([1.0; 5]);
    assert_eq!(weights(&options, None, &routed), [SHARED_LEVEL_WEIGHTS; 2]);
    assert_eq!(weights(&options, Some(1), &routed), [[1.0; 5]; 2]);
    options.shared_level_weights = Some([2.0; 5]);
    assert_eq!(weights(&options, None, &routed), [[2.0; 5]; 2]);
    assert_eq!(weights(&options, None, &dense), [[2.0; 5]; 2]);
}
