//! What the program says of the machine.

use super::{run, store};
use serde_json::Value;

/// Speeds that are said, so that nothing needs to be measured.
const SPEEDS: [&str; 6] = ["--memory-speed", "20GB", "--disk-speed", "1GB", "--threads", "1"];

#[test]
fn the_doctor_says_what_limits_the_machine() {
    let with = |more: &[&str]| run(&[&["doctor", store()], &SPEEDS[..], more].concat()).ok();
    let text = with(&[]);
    for word in ["processor", "memory", "disk", "limit"] {
        assert!(text.lines().any(|line| line.starts_with(word)), "{word}: {text}");
    }
    let json: Value = serde_json::from_str(&with(&["--json"])).unwrap();
    assert_eq!(json["machine"]["memory_bytes_per_s"], 20e9);
    assert!(json["cores"].as_u64() >= Some(1), "{json}");
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["about"] == "limit"), "{json}");
    if cfg!(target_os = "linux") {
        let memory = &json["memory"];
        let budget = memory["default_budget_bytes"].as_u64().unwrap();
        assert!(budget > 0 && budget < memory["free_bytes"].as_u64().unwrap(), "{memory}");
    }
}
