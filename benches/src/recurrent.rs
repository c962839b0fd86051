//! Recurrent layers with random weights at the sizes of published models.

use std::sync::Arc;

use nestling_core::backend::{
    Backend, DeltaNet, Encoder, EncoderExt, Linear, Mamba2, ShortConv, Write,
};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepRows};
use nestling_core::recurrent::{StateId, StateShape, StateTrack};
use nestling_core::{ActivationMode, EngineError};
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_cpu::{Cpu, CpuBuffer, CpuStates};
use nestling_formats::Level;
use nestling_formats::nested::NestedError;
use nestling_import::{DeltaNetConfig, Mamba2Config, ShortConvConfig};

use super::RandomMatrix;

/// Level of the projections.
const LEVEL: Level = Level::L4;

/// Model whose sizes a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentModel {
    /// Mamba-2 of Granite 4 H-Tiny.
    Granite4HTiny,
    /// Gated DeltaNet of Qwen3-Next-80B-A3B.
    Qwen3Next,
    /// Gated short convolution of LFM2-8B-A1B.
    Lfm2,
}

impl RecurrentModel {
    /// All models.
    pub const ALL: [Self; 3] = [Self::Granite4HTiny, Self::Qwen3Next, Self::Lfm2];

    /// Returns the name of the model.
    pub fn name(self) -> &'static str {
        match self {
            Self::Granite4HTiny => "Granite 4 H-Tiny",
            Self::Qwen3Next => "Qwen3-Next",
            Self::Lfm2 => "LFM2-8B-A1B",
        }
    }

    fn hidden(self) -> usize {
        if self == Self::Granite4HTiny { 1536 } else { 2048 }
    }
}

enum Mixer {
    Mamba2(Mamba2<Cpu>),
    DeltaNet(DeltaNet<Cpu>),
    ShortConv(ShortConv<Cpu>),
}

/// A recurrent layer between its norm and the residual: the projections with the mixer between them.
pub struct RecurrentLayer {
    cpu: Cpu,
    input: [Linear<Cpu>; 1],
    mixer: Mixer,
    output: [Linear<Cpu>; 1],
    states: CpuStates,
    batch: Batch,
    rows: StepRows,
    x: CpuBuffer,         // [T, hidden]
    projected: CpuBuffer, // [T, inputs]
    mixed: CpuBuffer,     // [T, inner]
    out: CpuBuffer,       // [T, hidden]
    values: Vec<f32>,     // [T, hidden]
    hidden: usize,
    position: usize,
}

impl RecurrentLayer {
    /// Creates a layer for steps of up to `rows` tokens.
    ///
    /// # Errors
    /// Fails if memory is full.
    pub fn new(
        model: RecurrentModel,
        pool: Arc<ThreadPool>,
        kernels: &'static Kernels,
        rows: usize,
    ) -> Result<Self, EngineError> {
        let (mut cpu, hidden) = (Cpu::with(pool, kernels), model.hidden());
        let (mixer, [inputs, inner, floats]) = match model {
            RecurrentModel::Granite4HTiny => mamba2(&mut cpu)?,
            RecurrentModel::Qwen3Next => delta_net(&mut cpu)?,
            RecurrentModel::Lfm2 => short_conv(&mut cpu)?,
        };
        let mut linear = |rows, cols| {
            let matrix = RandomMatrix::new(rows, cols, LEVEL).map_err(refused)?;
            let matrix = cpu.upload_matrix(&matrix.weights(true)?, ActivationMode::Int8)?;
            Ok::<_, EngineError>([Linear::new(matrix, None)])
        };
        let (input, output) = (linear(inputs, hidden)?, linear(hidden, inner)?);
        let states = cpu.state_pool(&StateShape { floats, states: 1 })?;
        let (x, projected) = (cpu.buffer(rows, hidden)?, cpu.buffer(rows, inputs)?);
        let (mixed, out) = (cpu.buffer(rows, inner)?, cpu.buffer(rows, hidden)?);
        let (values, position) = (noise(rows * hidden, 9), 0);
        let batch = Batch { sequences: vec![SequenceRef::default()], ..Batch::default() };
        let step_rows = StepRows::of_batch(&batch);
        Ok(Self {
            cpu,
            input,
            mixer,
            output,
            states,
            batch,
            rows: step_rows,
            x,
            projected,
            mixed,
            out,
            values,
            hidden,
            position,
        })
    }

    /// Starts a new sequence.
    pub fn restart(&mut self) {
        self.position = 0;
    }

    /// Passes the next `count` tokens of the sequence through the layer.
    ///
    /// # Errors
    /// Fails if memory is full.
    pub fn step(&mut self, count: usize) -> Result<(), EngineError> {
        self.fill_rows(count);
        let Self { cpu, rows, x, projected, .. } = self;
        let mut encoder = cpu.encoder();
        encoder.write(&self.values[..count * self.hidden], x)?;
        encoder.matmul(&self.input, &rows.dense_levels, x, Write::Set, projected)?;
        self.mix()?;
        let levels = &self.rows.dense_levels;
        self.cpu.encoder().matmul(&self.output, levels, &self.mixed, Write::Set, &mut self.out)
    }

    /// Passes the next `count` tokens through the mixer, without the projections. The inputs are those of the last
    /// step, which must have had `count` tokens.
    ///
    /// # Errors
    /// Fails if the last step had other rows.
    pub fn mixer_step(&mut self, count: usize) -> Result<(), EngineError> {
        self.fill_rows(count);
        self.mix()
    }

    /// Sets the rows of a step of `count` tokens.
    fn fill_rows(&mut self, count: usize) {
        let (first, end) = (self.position, self.position + count);
        self.position = end;
        self.batch.rows.clear();
        self.batch.rows.extend((first..end).map(|position| Row {
            token: 0,
            position: position as u32,
            sequence: 0,
            wants_logits: false,
            levels: LevelPolicy::Fixed(LEVEL),
        }));
        self.batch.sequences[0].states = StateTrack::in_place(StateId(0), first, end);
        self.rows.fill(&self.batch);
    }

    fn mix(&mut self) -> Result<(), EngineError> {
        let Self { cpu, rows, projected, mixed, states, .. } = self;
        let mut encoder = cpu.encoder();
        match &self.mixer {
            Mixer::Mamba2(mixer) => encoder.mamba2(mixer, rows, projected, states, mixed),
            Mixer::DeltaNet(mixer) => encoder.delta_net(mixer, rows, projected, states, mixed),
            Mixer::ShortConv(mixer) => encoder.short_conv(mixer, rows, projected, states, mixed),
        }
    }

    /// Returns the output of the last step.
    ///
    /// # Errors
    /// Fails if memory is full.
    pub fn output(&mut self) -> Result<Vec<f32>, EngineError> {
        nestling_core::driver::block_on(self.cpu.encoder().read(&self.out))
    }
}

fn refused(error: NestedError) -> EngineError {
    EngineError::Nested(error)
}

/// Returns `count` numbers between -1 and 1.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.0 - 1.0).collect()
}

/// Returns a mixer with its columns of inputs and outputs, and the floats of its state.
fn mamba2(cpu: &mut Cpu) -> Result<(Mixer, [usize; 3]), EngineError> {
    let shape = Mamba2Config {
        num_heads: 48,
        head_dim: 64,
        n_groups: 1,
        state_size: 128,
        conv_kernel: 4,
        conv_bias: true,
        proj_bias: false,
        norm_eps: 1e-5,
    };
    let mut floats = |count, seed| cpu.upload_floats(&noise(count, seed));
    let mixer = Mamba2 {
        shape,
        conv: floats(shape.conv_kernel * shape.channels(), 1)?,
        bias: Some(floats(shape.channels(), 2)?),
        rate: cpu.upload_floats(&vec![-0.5; shape.num_heads])?,
        time_bias: cpu.upload_floats(&noise(shape.num_heads, 3))?,
        skip: cpu.upload_floats(&noise(shape.num_heads, 4))?,
        norm: cpu.upload_floats(&noise(shape.inner(), 5))?,
    };
    Ok((Mixer::Mamba2(mixer), [shape.inputs(), shape.inner(), shape.state_floats()]))
}

fn delta_net(cpu: &mut Cpu) -> Result<(Mixer, [usize; 3]), EngineError> {
    let shape = DeltaNetConfig {
        num_key_heads: 16,
        num_value_heads: 32,
        key_head_dim: 128,
        value_head_dim: 128,
        conv_kernel_dim: 4,
    };
    let unit = 1.0 / shape.key_head_dim as f32;
    let mixer = DeltaNet {
        shape,
        conv: cpu.upload_floats(&noise(shape.conv_kernel_dim * shape.channels(), 1))?,
        query_norm: cpu.upload_floats(&vec![unit; shape.key_head_dim])?,
        key_norm: cpu.upload_floats(&vec![unit.sqrt(); shape.key_head_dim])?,
        unit_eps: 1e-6 * unit,
        rate: cpu.upload_floats(&vec![-0.5; shape.num_value_heads])?,
        time_bias: cpu.upload_floats(&noise(shape.num_value_heads, 3))?,
        norm: cpu.upload_floats(&noise(shape.value_head_dim, 4))?,
        eps: 1e-6,
    };
    Ok((Mixer::DeltaNet(mixer), [shape.inputs(), shape.value_dim(), shape.state_floats()]))
}

fn short_conv(cpu: &mut Cpu) -> Result<(Mixer, [usize; 3]), EngineError> {
    let shape = ShortConvConfig { channels: 2048, taps: 3, bias: false };
    let taps = cpu.upload_floats(&noise(shape.taps * shape.channels, 1))?;
    let mixer = ShortConv { shape, taps, bias: None };
    Ok((Mixer::ShortConv(mixer), [shape.inputs(), shape.channels, shape.state_floats()]))
}
