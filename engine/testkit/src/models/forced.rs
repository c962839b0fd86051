//! Teacher-forced logits with the CPU's routing. A near tie of a router that rounds the other way would not
//! be an error of the logits.
//!
//! With float activations, two devices only differ by the rounding of sums. With int8 activations, a value
//! halfway between two integers may round either way. From the first such value on, devices differ by as much
//! as int8 rounding itself changes a logit, which the CPU's two modes show.

use nestling_core::weights::ActivationMode::{Float, Int8};

use super::common::{all_logits, parts, recorded, replayed};
use crate::{ModelsDevice, Test, note, tests};

/// Maximum difference of a logit with float activations. Eight layers have about ten sums each, of at most a
/// thousand products. Each such sum is off by 1e-6 of its magnitude, and logits are below 30.
const FLOAT_TOLERANCE: f32 = 0.005;

/// Returns the root mean square and the maximum of the differences.
fn distance(a: &[f32], b: &[f32]) -> (f64, f32) {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let squares: f64 = off.clone().map(|off| f64::from(off).powi(2)).sum();
    ((squares / a.len() as f64).sqrt(), off.fold(0.0, f32::max))
}

fn teacher_forced_logits_are_off_by_the_rounding_of_activations<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    let tokens = &parts.text[..32];
    let float = all_logits(&mut parts.on_cpu(Float), tokens, 32);
    let (int8, routing) = recorded(&mut parts.on_cpu(Int8), (0, tokens));
    let found = replayed(&mut parts.runner(device, Int8, None), (0, tokens), routing);
    let (off, rounding) = (distance(&found, &int8), distance(&float, &int8));
    note!("off by {off:?}, int8 instead of float on the CPU {rounding:?}");
    // Both devices round, each with the same error but in different places.
    assert!(off.0 <= rounding.0 * std::f64::consts::SQRT_2, "{off:?} {rounding:?}");
}

fn teacher_forced_logits_with_float_activations_are_those_of_the_cpu<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    let tokens = &parts.text[..32];
    let (expected, routing) = recorded(&mut parts.on_cpu(Float), (0, tokens));
    let found = replayed(&mut parts.runner(device, Float, None), (0, tokens), routing);
    let off = distance(&found, &expected);
    note!("off by {off:?}");
    assert!(off.1 <= FLOAT_TOLERANCE, "{off:?}");
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        teacher_forced_logits_are_off_by_the_rounding_of_activations::<D>,
        teacher_forced_logits_with_float_activations_are_those_of_the_cpu::<D> => "products with float activations are slow on a software device",
    ]
}
