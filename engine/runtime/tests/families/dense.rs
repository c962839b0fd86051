//! Memory of dense models, whose weights are not streamed.

use nestling_core::error::EngineError;
use nestling_experts::config_of;
use nestling_runtime::{MemoryPlan, ModelOptions, PlannedResidence};

use crate::harness;

#[test]
fn a_budget_that_the_weights_do_not_fit_is_refused_with_the_smallest_one() {
    let (_folder, store) = harness::default_store("llama");
    let config = config_of(&store).unwrap();
    let options = ModelOptions::default();
    let plan = |available| MemoryPlan::of_store(&store, &config, &options, None, available);
    let least = |available| match plan(Some(available)) {
        Err(EngineError::MemoryTooSmall(refused)) => *refused,
        other => panic!("{other:?}"),
    };
    let whole = plan(None).unwrap();
    assert_eq!((whole.residence, whole.expert_bytes_total), (PlannedResidence::Resident, 0));
    let refused = least(0);
    assert_eq!((refused.dense_bytes, refused.expert_bytes), (whole.weight_bytes, 0));
    assert!(!refused.to_string().contains("experts"), "{refused}");
    assert!(refused.least() < whole.total_bytes(), "{refused}");
    let tight = plan(Some(refused.least())).unwrap();
    assert_eq!((tight.residence, tight.weight_bytes), (whole.residence, whole.weight_bytes));
    assert!(tight.total_bytes() <= refused.least());
    assert_eq!(least(refused.least() - 1).least(), refused.least());
}
