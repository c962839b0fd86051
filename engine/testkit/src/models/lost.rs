//! A device that is lost, and one that takes its place.

use nestling_core::EngineError;
use nestling_core::weights::ActivationMode::Int8;

use super::common::{greedy, own_device, parts, try_step};

#[test]
fn a_lost_device_is_an_error_and_a_new_one_answers_the_same() {
    let (Some(device), Some(parts)) = (own_device(), parts(None)) else { return };
    let handle = device.again().unwrap();
    let mut runner = parts.runner(device, Int8, None);
    let before = greedy(&mut runner, &parts.text[..8], 4);
    handle.destroy();
    for _ in 0..2 {
        let lost = try_step(&mut runner, (12, &parts.text[..1]), |_| true);
        assert!(matches!(lost, Err(EngineError::DeviceLost(_))), "{:?}", lost.err());
    }
    drop(runner);
    let Some(device) = own_device() else { return };
    assert_eq!(greedy(&mut parts.runner(device, Int8, None), &parts.text[..8], 4), before);
}
