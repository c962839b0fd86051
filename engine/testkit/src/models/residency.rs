//! Streamed experts, chunked prompts, and steps that do not wait for the routing.

use nestling_core::weights::ActivationMode::Int8;

use super::common::{all_logits, parts, step};
use crate::{ModelsDevice, Test, note, tests};

fn logits_do_not_depend_on_residency_or_pieces<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    let tokens = &parts.text[..40];
    let resident = || parts.runner(D::again(&device), Int8, None);
    let whole = all_logits(&mut resident(), tokens, 40);
    // The device looks up the experts of chunks with so few rows.
    let few = all_logits(&mut resident(), &tokens[..7], 3);
    assert!(whole[..few.len()] == few, "in small pieces");
    let bytes = 4 << 20;
    let mut streamed = parts.runner(D::again(&device), Int8, Some(bytes));
    assert!(whole == all_logits(&mut streamed, tokens, 40), "streamed within {bytes} bytes");
}

fn a_step_with_resident_experts_waits_once<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    let mut runner = parts.runner(device, Int8, None);
    step(&mut runner, (0, &parts.text[..8]), |at| at == 7);
    let found = step(&mut runner, (8, &parts.text[8..9]), |_| true).stats;
    let mut cpu = parts.on_cpu(Int8);
    step(&mut cpu, (0, &parts.text[..8]), |at| at == 7);
    let expected = step(&mut cpu, (8, &parts.text[8..9]), |_| true).stats;
    note!("{:?}", found.device);
    assert_eq!(found.device.waits, 1);
    assert_eq!(found.expert_uses, expected.expert_uses);
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        logits_do_not_depend_on_residency_or_pieces::<D>,
        a_step_with_resident_experts_waits_once::<D>,
    ]
}
