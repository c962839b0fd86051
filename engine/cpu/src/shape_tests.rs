//! Operands of the wrong shape are rejected with an error that names them, before an encoder sees them.

use nestling_formats::Level;
use nestling_import::GateFunction;

use super::Cpu;
use super::reference::Reference;
use nestling_core::backend::{Backend, Encoder, Linear, Routing, Write};
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};

fn refusal(result: Result<(), EngineError>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, EngineError::Shape { .. }), "{error:?}");
    error.to_string()
}

/// Returns the errors for operands of the wrong shape, one per operation.
fn refusals<B: Backend>(mut backend: B) -> Vec<String> {
    let weights = MatrixWeights::Float(FloatMatrix::from_f32(3, 4, &[0.5; 12]).unwrap());
    let matrix = backend.upload_matrix(&weights, ActivationMode::Float).unwrap();
    let linear = [Linear::<B>::new(matrix, None)];
    let [short, norm] = [3, 4].map(|length| backend.upload_floats(&vec![1.0; length]).unwrap());
    let [mut x, mut wide, mut out, mut narrow] =
        [4, 4, 3, 2].map(|cols| backend.buffer(2, cols).unwrap());
    let mut routing = backend.routing(2, 2).unwrap();
    let chosen =
        Routing { num_experts_per_tok: 3, expert_ids: vec![0; 6], expert_weights: vec![0.0; 6] };
    let (levels, mut columns) = ([Level::L8; 2], Vec::new());
    let mut enc = backend.encoder();
    enc.write(&[1.0; 8], &mut x).unwrap();
    enc.write(&[1.0; 3], &mut out).unwrap();
    enc.write(&[1.0; 4], &mut wide).unwrap();
    vec![
        refusal(enc.write(&[1.0; 9], &mut x)),
        refusal(enc.write_rows(&[1.0; 4], &[2], &mut x)),
        refusal(enc.rms_norm(&x, &short, 1e-6, Write::Set, &mut wide)),
        refusal(enc.rms_norm(&x, &norm, 1e-6, Write::Set, &mut narrow)),
        refusal(enc.matmul(&linear, &levels[..1], &x, Write::Set, &mut out)),
        refusal(enc.matmul(&linear, &levels, &x, Write::Add, &mut out)),
        refusal(enc.matmul(&linear, &levels, &out, Write::Set, &mut narrow)),
        refusal(enc.gather_rows(&x, &[2], &mut wide)),
        refusal(enc.gate(GateFunction::Sigmoid, &x, &mut out)),
        refusal(enc.gate(GateFunction::Softplus, &wide, &mut out)),
        refusal(enc.write_routing(&chosen, &mut routing)),
        refusal(block_on(enc.argmax_into(&x, 5, &mut columns))),
    ]
}

#[test]
fn refusals_name_the_operation_and_the_operand() {
    let expected = [
        "write: values: expected a multiple of 4, found 9",
        "write_rows: rows: expected a row below 2, found 2",
        "rms_norm: weight: expected 4, found 3",
        "rms_norm: out: expected [2, 4], found [2, 2]",
        "matmul: levels: expected 2, found 1",
        "matmul: out: expected [2, 3], found [1, 3]",
        "matmul: levels: expected 1, found 2",
        "gather_rows: indices: expected a row below 2, found 2",
        "gate: rows of out: expected 2, found 1",
        "gate: columns of out: expected a multiple of 4, found 3",
        "write_routing: experts of a token: expected 2, found 3",
        "argmax: columns to choose among: expected at most 4, found 5",
    ];
    assert_eq!(refusals(Reference), expected);
    assert_eq!(refusals(Cpu::new(1)), expected);
}
