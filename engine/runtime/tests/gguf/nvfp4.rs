//! NVFP4 files with scale tensors, as llama.cpp writes them.

use nestling_formats::MatrixId;
use nestling_import::Checkpoint;

use super::{NVFP4, data};
use nestling_testkit::runners::golden_tensors;

/// Weights match those of the gguf package times the scale. Both the product of the scales and that with the
/// value are rounded, and so is the reference.
#[test]
fn weights_are_those_of_blocks_and_scales() {
    let checkpoint = Checkpoint::open(data(&format!("{NVFP4}.gguf"))).unwrap();
    let golden = golden_tensors(&data(&format!("{NVFP4}.safetensors")));
    let mut compared = 0;
    for shape in &checkpoint.shape().matrices {
        let MatrixId { expert, .. } = shape.id;
        let place = checkpoint.matrix(shape.id).unwrap();
        let (name, _) = place.tensors().next().unwrap();
        let Some(expected) = golden.get(name) else { continue };
        assert_eq!(place.scale_tensors().count(), 1, "{name}");
        let first = 64 * expert.unwrap_or(0) as usize;
        let found = checkpoint.read_matrix(shape.id).unwrap();
        for (found, expected) in found[..64].iter().zip(&expected[first..first + 64]) {
            let tolerance = 1.5 * f32::EPSILON * expected.abs();
            assert!((found - expected).abs() <= tolerance, "{name}: {found} {expected}");
            compared += usize::from(*expected != 0.0);
        }
    }
    assert!(compared > 1000, "{compared}");
}
