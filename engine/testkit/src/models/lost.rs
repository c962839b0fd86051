//! Loss of a device, and its replacement.

use nestling_core::EngineError;
use nestling_core::weights::ActivationMode::Int8;

use super::common::{greedy, parts, try_step};
use crate::{ModelsDevice, Test, tests};

fn a_lost_device_is_an_error_and_a_new_one_answers_the_same<D: ModelsDevice>() {
    let (device, parts) = (D::own_device(), parts(None));
    let handle = D::again(&device);
    let mut runner = parts.runner(device, Int8, None);
    let before = greedy(&mut runner, &parts.text[..8], 4);
    D::destroy(&handle);
    for _ in 0..2 {
        let lost = try_step(&mut runner, (12, &parts.text[..1]), |_| true);
        assert!(matches!(lost, Err(EngineError::DeviceLost(_))), "{:?}", lost.err());
    }
    drop(runner);
    let device = D::own_device();
    assert_eq!(greedy(&mut parts.runner(device, Int8, None), &parts.text[..8], 4), before);
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![a_lost_device_is_an_error_and_a_new_one_answers_the_same::<D>,]
}
