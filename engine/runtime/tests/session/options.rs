//! Serde representations of options.

use std::sync::Arc;
use std::time::Duration;

use super::constraint_starts::Script;
use super::fake::greedy;
use nestling_core::{ActivationMode, KvDtype};
use nestling_cpu::ThreadPlacement;
use nestling_cpu::kernels::InstructionSet;
use nestling_experts::expert::{HostExperts, HostLink, HostSpeeds, Prefetch};
use nestling_experts::reads::{ReadMethod, ReadOptions};
use nestling_experts::record::{RecordOptions, Recorder};
use nestling_formats::Level;
use nestling_levels::dual::{DualOptions, LevelMode};
use nestling_runtime::{
    Driver, EngineOptions, GenerateOptions, HiddenRows, ModelOptions, Prefixes, Residence,
    SamplingOptions, SamplingParams, Starts, Writes,
};
use serde_json::json;

#[test]
fn what_is_not_said_is_the_models_own() {
    let own = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..Default::default() };
    let none = SamplingOptions::default();
    assert_eq!(none.over(&own), own);
    let seeded = SamplingOptions { seed: Some(3), top_k: Some(0), ..none };
    let expected = SamplingParams { seed: Some(3), top_k: 0, ..own.clone() };
    assert_eq!(seeded.over(&own), expected);
    assert_eq!(SamplingOptions::from(expected.clone()).over(&SamplingParams::greedy()), expected);
    assert_eq!(SamplingOptions::greedy().over(&own), SamplingParams::greedy());
}

#[test]
fn options_come_back_as_they_were_written() {
    let sampling = SamplingOptions {
        temperature: Some(0.5),
        top_k: Some(20),
        logit_bias: Some(vec![(3, -1.5), (4, f32::NEG_INFINITY)]),
        seed: Some(u64::MAX),
        ..SamplingOptions::default()
    };
    let dual = DualOptions { mean_level: Some(3.25), lowest: Level::L3, mode: LevelMode::Elastic };
    let options = GenerateOptions {
        sampling,
        stop: vec!["end".into()],
        stop_tokens: vec![7],
        hidden: Some(HiddenRows::All),
        level: Some(Level::L6),
        dual: Some(dual),
        deadline: Some(Duration::from_millis(1500)),
        cache_salt: Some("salt".into()),
        ..greedy(9)
    };
    let written = serde_json::to_value(&options).unwrap();
    assert_eq!(written["level"], 6);
    assert_eq!(written["deadline"], 1.5);
    assert_eq!(written["hidden"], "all");
    assert_eq!(written["sampling"]["logit_bias"], json!([[3, -1.5], [4, null]]));
    assert_eq!(written["dual"], json!({"mean_level": 3.25, "lowest": 3, "mode": "elastic"}));
    let read: GenerateOptions = serde_json::from_value(written).unwrap();
    assert_eq!(format!("{read:?}"), format!("{options:?}"));
    let nothing_said: GenerateOptions = serde_json::from_value(json!({})).unwrap();
    assert_eq!(format!("{nothing_said:?}"), format!("{:?}", GenerateOptions::default()));
}

#[test]
fn options_of_engines_and_models_are_read_and_written() {
    let engine = EngineOptions {
        threads: Some(3),
        placement: ThreadPlacement::Pinned,
        instruction_set: InstructionSet::AvxVnni,
        memory_budget: Some(1 << 40),
        driver: Driver::Caller,
        gap_target: Duration::from_millis(250),
        waiting_max: 7,
    };
    let written = serde_json::to_value(&engine).unwrap();
    assert_eq!((&written["gap_target"], &written["placement"]), (&json!(0.25), &json!("pinned")));
    assert_eq!(written["instruction_set"], "avx_vnni");
    assert_eq!(serde_json::from_value::<EngineOptions>(written).unwrap(), engine);
    let link = HostLink { bytes_per_s: 5e10, round_trip_s: 1e-5, device_bytes_per_s: 1e12 };
    let model = ModelOptions {
        level: Some(Level::L4),
        weight_budget: Some(9),
        kv_dtype: KvDtype::Int8,
        context_length: Some(100),
        kv_tokens: Some(200),
        recurrent_states: Some(3),
        prefixes: Prefixes::Alone,
        rows_max: 64,
        activation_mode: ActivationMode::Float,
        residence: Residence::Streamed,
        reads: ReadOptions { method: ReadMethod::IoUring, timeout: None, ..ReadOptions::default() },
        prefetch: Prefetch::Always,
        host_experts: HostExperts::By(HostSpeeds { link, host_bytes_per_s: 1e10 }),
        ..ModelOptions::default()
    };
    let written = serde_json::to_value(&model).unwrap();
    assert_eq!((&written["kv_dtype"], &written["residence"]), (&json!("int8"), &json!("streamed")));
    assert_eq!(written["reads"]["method"], "io_uring");
    assert_eq!(serde_json::from_value::<ModelOptions>(written).unwrap(), model);
    let nothing_said = serde_json::from_value::<ModelOptions>(json!({"reads": {}})).unwrap();
    assert_eq!(nothing_said, ModelOptions::default());
    for wrong in
        [json!({"page_store": null}), json!({"kv_dtype": "f8"}), json!({"reads": {"depht": 1}})]
    {
        serde_json::from_value::<ModelOptions>(wrong).unwrap_err();
    }
    let recorder = Some(Arc::new(Recorder::new(RecordOptions::default())));
    serde_json::to_string(&ModelOptions { recorder, ..model }).unwrap_err();
}

#[test]
fn what_is_unknown_or_makes_no_sense_is_refused() {
    for (wrong, named) in [
        (json!({"max_token": 9}), "max_token"),
        (json!({"constraint": null}), "constraint"),
        (json!({"sampling": {"temp": 1.0}}), "temp"),
        (json!({"level": 5}), "levels are 2, 3, 4, 6 and 8, not 5"),
        (json!({"dual": {"lowest": 7, "mode": "strict"}}), "not 7"),
        (json!({"dual": {"lowest": 2, "mode": "strict", "mean": 3}}), "mean"),
        (json!({"deadline": -1.0}), "negative"),
        (json!({"deadline": 1e300}), "too big"),
        (json!({"priority": 200}), "200"),
    ] {
        let error = serde_json::from_value::<GenerateOptions>(wrong).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    let script = Script { text: "x", starts: Starts::WithAnswer, writes: Writes::Text };
    let constrained = GenerateOptions { constraint: Some(Arc::new(script)), ..greedy(1) };
    let error = serde_json::to_string(&constrained).unwrap_err().to_string();
    assert!(error.contains("hold code"), "{error}");
}
