//! Measures a device's speed when it is opened. Problem sizes grow until a launch takes `ENOUGH_SECONDS` or
//! the largest size is reached; the whole measurement takes a few milliseconds.

use std::sync::Arc;

use nestling_formats::nested::{
    InputTransform, Layout, NestedCodec, NestedTables, ScaleSteps, plane_bytes,
};
use nestling_formats::{Invariant, Level, Plane};
use nestling_import::{DeltaNetConfig, RopePairs};

use super::work::{WorkKind, WorkRates, work_of};
use nestling_core::EngineError;
use nestling_core::backend::{AttentionHeads, Backend, DeltaNet, Encoder, HeadNorm, Linear, Write};
use nestling_core::batch::StepRows;
use nestling_core::clock::Moment;
use nestling_core::driver::block_on;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};
use nestling_core::recurrent::{StateId, StateShape, StateTrack};
use nestling_core::weights::{
    ActivationMode, ByteRegion, FloatMatrix, MatrixWeights, NestedMatrix, PlaneRegions,
};

/// Duration from which a launch is accurate enough to measure, in seconds.
const ENOUGH_SECONDS: f64 = 1e-3;

/// Number of timed runs of a launch. The shortest counts, since other programs may delay the rest.
const ROUNDS: usize = 2;

/// Number of problem sizes, each four times the one before.
const SIZES: u32 = 4;

/// Measures a device. The backend must be idle, and is to be dropped afterwards.
///
/// # Errors
/// Returns an error if the device is lost or lacks memory for the smallest sizes.
pub fn measure_rates<B: Backend>(backend: &mut B) -> Result<WorkRates, EngineError> {
    let mut rates = [0.0; WorkKind::MEASURED.len()];
    for (rate, kind) in rates.iter_mut().zip(WorkKind::MEASURED) {
        *rate = rate_of(backend, kind)?;
    }
    Ok(WorkRates::measured(rates))
}

/// Returns the rate, in work per second, at the largest size measured.
fn rate_of<B: Backend>(backend: &mut B, kind: WorkKind) -> Result<f64, EngineError> {
    let (mut work, mut seconds) = measured(backend, kind, 1)?;
    for size in 1..SIZES {
        if seconds >= ENOUGH_SECONDS {
            break;
        }
        // Larger sizes are optional: running out of memory ends the search.
        let Ok(larger) = measured(backend, kind, 4usize.pow(size)) else { break };
        (work, seconds) = larger;
    }
    Ok(work as f64 / seconds)
}

/// Returns the work of a launch and its duration in seconds. The work is `size` times the smallest one.
fn measured<B: Backend>(
    backend: &mut B,
    kind: WorkKind,
    size: usize,
) -> Result<(u64, f64), EngineError> {
    match kind {
        WorkKind::ManyRows => products(backend, &nested(32 * size, 256)?, 64),
        WorkKind::FewRows => products(backend, &nested(32 * size, 256)?, 8),
        WorkKind::Floats => {
            let values = vec![0.0; 32 * size * 128];
            let matrix = FloatMatrix::from_f32(32 * size, 128, &values)?;
            products(backend, &MatrixWeights::Float(matrix), 32)
        }
        WorkKind::Attention | WorkKind::Elements => attention(backend, size),
        WorkKind::Recurrence => recurrence(backend, size),
    }
}

/// Returns the shortest time in seconds to record an operation and run it to completion. The device is idle
/// when each round starts.
fn seconds<B: Backend>(
    backend: &mut B,
    mut record: impl FnMut(&mut B::Encoder<'_>) -> Result<(), EngineError>,
) -> Result<f64, EngineError> {
    let mut shortest = f64::INFINITY;
    for round in 0..=ROUNDS {
        let started = Moment::now();
        let mut encoder = backend.encoder();
        record(&mut encoder)?;
        block_on(encoder.finish())?;
        drop(encoder);
        let taken = Moment::now().seconds_since(started);
        // The first round may compile kernels and allocate memory.
        if round > 0 {
            shortest = shortest.min(taken);
        }
        if taken >= 20.0 * ENOUGH_SECONDS {
            return Ok(shortest.min(taken));
        }
    }
    Ok(shortest)
}

/// Returns a matrix with zeros in all planes. Decoding speed does not depend on the codes.
fn nested(rows: usize, cols: usize) -> Result<MatrixWeights, EngineError> {
    let codec = NestedCodec {
        alpha_a: 8192,
        alpha_b: 16384,
        beta_q: 16,
        tables: vec![NestedTables {
            t2: [-90, -25, 25, 90],
            t3: [-110, -70, -40, -12, 12, 40, 70, 110],
            t4: std::array::from_fn(|i| (i as i8 - 8) * 15),
        }],
        inputs: InputTransform::None,
        steps: ScaleSteps::Eighths,
    };
    let zeros = |plane| {
        let bytes = plane_bytes(Layout::Tile16, rows, cols, plane);
        let bytes = bytes.invariant("matrices that are measured with have planes")?;
        Ok::<_, EngineError>(ByteRegion::from_vec(vec![0; bytes]))
    };
    let regions = PlaneRegions {
        p2: zeros(Plane::P2)?,
        p3: Some(zeros(Plane::P3)?),
        p4: Some(zeros(Plane::P4)?),
        p34: None,
        p6: Some(zeros(Plane::P6)?),
        p8: Some(zeros(Plane::P8)?),
    };
    let (layout, codec) = (Layout::Tile16, Arc::new(codec));
    let matrix = NestedMatrix::new(rows, cols, layout, codec, regions, Level::ALL)?;
    Ok(MatrixWeights::Nested(matrix))
}

fn zeros<B: Backend>(backend: &mut B, rows: usize, cols: usize) -> Result<B::Buffer, EngineError> {
    let mut buffer = backend.buffer(rows, cols)?;
    let mut encoder = backend.encoder();
    encoder.clear(rows, &mut buffer)?;
    encoder.flush()?;
    drop(encoder);
    Ok(buffer)
}

fn products<B: Backend>(
    backend: &mut B,
    weights: &MatrixWeights,
    count: usize,
) -> Result<(u64, f64), EngineError> {
    let (rows, cols) = (weights.rows(), weights.cols());
    let matrix = backend.upload_matrix(weights, ActivationMode::Int8)?;
    let all = [Linear::new(matrix, None)];
    let (x, mut out) = (zeros(backend, count, cols)?, backend.buffer(count, rows)?);
    // L8 reads all planes, so it is the slowest level.
    let levels = vec![Level::L8; count];
    let taken =
        seconds(backend, |encoder| encoder.matmul(&all, &levels, &x, Write::Set, &mut out))?;
    Ok((work_of(&[count, rows, cols]), taken))
}

/// Returns the rows of one sequence, all at the same position. Only their speed matters.
fn rows_at(position: usize, count: usize) -> StepRows {
    let pages = (0..=position / PAGE_POSITIONS).map(|page| PageId(page as u32)).collect();
    StepRows {
        positions: vec![position as u32; count],
        tokens: vec![0; count],
        sequences: vec![0; count],
        dense_levels: vec![Level::L8; count],
        pages: vec![pages],
        ..StepRows::default()
    }
}

fn attention<B: Backend>(backend: &mut B, size: usize) -> Result<(u64, f64), EngineError> {
    const HEADS: usize = 8;
    const DIM: usize = 64;
    // All rows see the same `positions` positions.
    let (count, positions) = (8 * size, PAGE_POSITIONS * size.min(8));
    let shape = KvShape {
        num_key_value_heads: HEADS,
        head_dim: DIM,
        values: KvValues::Beside,
        dtype: KvDtype::F32,
        pages: positions / PAGE_POSITIONS,
    };
    let mut pool = backend.kv_pool(&shape)?;
    let heads = AttentionHeads {
        num_attention_heads: HEADS,
        num_key_value_heads: HEADS,
        head_dim: DIM,
        scale: 1.0,
        rope_first: 0,
        rope_pairs: RopePairs::Halves,
        eps: 1e-6,
        query_norm: HeadNorm::Absent,
        key_norm: HeadNorm::Absent,
        value_norm: None,
        sliding_window: None,
        sinks: None,
    };
    let bytes = vec![0; shape.page_bytes()];
    for page in 0..shape.pages {
        backend.write_page(&mut pool, PageId(page as u32), &bytes)?;
    }
    let rows = rows_at(positions - 1, count);
    let queries = zeros(backend, count, HEADS * DIM)?;
    let mut out = backend.buffer(count, HEADS * DIM)?;
    let taken =
        seconds(backend, |encoder| encoder.attend(&heads, &rows, &queries, &pool, &mut out))?;
    Ok((work_of(&[count, positions, HEADS, 2 * DIM]), taken))
}

fn recurrence<B: Backend>(backend: &mut B, size: usize) -> Result<(u64, f64), EngineError> {
    const DIM: usize = 32;
    let shape = DeltaNetConfig {
        num_key_heads: 1,
        num_value_heads: 4 * size,
        key_head_dim: DIM,
        value_head_dim: DIM,
        conv_kernel_dim: 2,
    };
    let count = 16;
    let floats = StateShape { floats: shape.state_floats(), states: 1 };
    let mut states = backend.state_pool(&floats)?;
    let mut zeros_of = |count: usize| backend.upload_floats(&vec![0.0; count]);
    let net = DeltaNet {
        shape,
        conv: zeros_of(shape.conv_kernel_dim * shape.channels())?,
        query_norm: zeros_of(DIM)?,
        key_norm: zeros_of(DIM)?,
        unit_eps: 1e-6,
        rate: zeros_of(shape.num_value_heads)?,
        time_bias: zeros_of(shape.num_value_heads)?,
        norm: zeros_of(DIM)?,
        eps: 1e-6,
    };
    let mut rows = rows_at(0, count);
    rows.positions = (0..count as u32).collect();
    rows.states = vec![StateTrack::in_place(StateId(0), 0, count)];
    let projected = zeros(backend, count, shape.inputs())?;
    let mut out = backend.buffer(count, shape.value_dim())?;
    let taken = seconds(backend, |encoder| {
        encoder.delta_net(&net, &rows, &projected, &mut states, &mut out)
    })?;
    // Two dot products and one update for each element.
    Ok((work_of(&[3, count, shape.value_dim(), DIM]), taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestling_cpu::Cpu;

    #[test]
    fn every_kind_is_measured_at_every_size() {
        let mut cpu = Cpu::new(1);
        for kind in WorkKind::MEASURED {
            let (least, seconds) = measured(&mut cpu, kind, 1).unwrap();
            assert!(least > 0 && seconds > 0.0, "{kind:?}");
            let (most, _) = measured(&mut cpu, kind, 64).unwrap();
            assert!(most >= 64 * least, "{kind:?}: {least}, {most}");
        }
        let rates = measure_rates(&mut cpu).unwrap();
        // A CPU does not pause for milliseconds during a few thousand products.
        assert!(rates != WorkRates::UNKNOWN && rates != WorkRates::UNWATCHED, "{rates:?}");
    }
}
