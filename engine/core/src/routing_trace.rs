//! Routing traces: the experts of each row of each step, recorded from a model or generated from a seed.
//!
//! A trace file consists of lines of JSON: a header, then one line per step. When a trace is loaded, all of
//! it is checked against the header and against limits.

use std::io::{BufRead, Write};

use nestling_formats::Level;
use nestling_import::limits::{MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN, MAX_LAYERS};
use serde::{Deserialize, Serialize};

use crate::backend::Routing;
use crate::error::EngineError;

/// Version of the file format.
const VERSION: u32 = 1;

/// Maximum size of a line in bytes.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of steps in a trace.
const STEPS_MAX: usize = 1 << 20;

/// Routing of one layer in one step, row by row, with `experts_per_token` entries per row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRouting {
    /// Routed experts.
    pub ids: Vec<u32>,
    /// Router weights of the experts.
    pub weights: Vec<f32>,
    /// Level in bits that each expert is computed at.
    pub levels: Vec<u8>,
}

impl LayerRouting {
    /// Converts to a routing of `rows` rows, without levels.
    pub fn routing(&self, rows: usize) -> Routing {
        Routing {
            // Default: a layer without rows has no uses.
            num_experts_per_tok: self.ids.len().checked_div(rows).unwrap_or(0),
            expert_ids: self.ids.clone(),
            expert_weights: self.weights.clone(),
        }
    }
}

/// One step: its layers in order; layers without experts are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceStep {
    /// Routing of each layer.
    pub layers: Vec<LayerRouting>,
}

/// Model parameters of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceShape {
    /// Number of experts per layer; 0 for layers without experts.
    pub experts: Vec<u32>,
    /// Number of experts per row.
    pub experts_per_token: u32,
}

/// First line of a trace.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    nestling_routing_trace: u32,
    experts: Vec<u32>,
    experts_per_token: u32,
}

/// Routing of consecutive steps of a model.
///
/// ```
/// use nestling_core::routing_trace::{
///     LayerRouting, RoutingTrace, TraceShape, TraceStep, TraceWriter,
/// };
///
/// let shape = TraceShape { experts: vec![4], experts_per_token: 1 };
/// let layer = LayerRouting { ids: vec![2], weights: vec![1.0], levels: vec![8] };
/// let mut writer = TraceWriter::new(Vec::new(), &shape)?;
/// writer.step(&TraceStep { layers: vec![layer] })?;
/// let bytes = writer.finish()?;
/// let trace = RoutingTrace::read("example", &bytes[..])?;
/// assert_eq!(trace.steps[0].layers[0].ids, [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingTrace {
    /// Model parameters.
    pub shape: TraceShape,
    /// Steps in order.
    pub steps: Vec<TraceStep>,
}

/// Writer of a trace, step by step, without buffering it in memory.
pub struct TraceWriter<W: Write> {
    out: W,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace by writing its header.
    ///
    /// # Errors
    /// Returns an error if the write fails.
    pub fn new(mut out: W, shape: &TraceShape) -> Result<Self, std::io::Error> {
        let header = Header {
            nestling_routing_trace: VERSION,
            experts: shape.experts.clone(),
            experts_per_token: shape.experts_per_token,
        };
        line(&mut out, &header)?;
        Ok(Self { out })
    }

    /// Writes a step.
    ///
    /// # Errors
    /// Returns an error if the write fails.
    pub fn step(&mut self, step: &TraceStep) -> Result<(), std::io::Error> {
        line(&mut self.out, step)
    }

    /// Flushes and returns the underlying writer.
    ///
    /// # Errors
    /// Returns an error if the write fails.
    pub fn finish(mut self) -> Result<W, std::io::Error> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn line(out: &mut impl Write, value: &impl Serialize) -> Result<(), std::io::Error> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

impl RoutingTrace {
    /// Reads and checks a trace; `name` is used in error messages.
    ///
    /// # Errors
    /// [`EngineError::Trace`] with the line number.
    pub fn read(name: &str, mut input: impl BufRead) -> Result<Self, EngineError> {
        let mut number = 0;
        let mut text = Vec::new();
        let mut shape = None;
        let mut steps = Vec::new();
        loop {
            number += 1;
            let fault =
                |reason: String| EngineError::Trace { file: name.to_owned(), line: number, reason };
            text.clear();
            let mut limited = std::io::Read::take(&mut input, LINE_BYTES_MAX);
            let read = limited.read_until(b'\n', &mut text).map_err(|e| fault(e.to_string()))?;
            if read == 0 {
                break;
            }
            if text.last() != Some(&b'\n') {
                return Err(fault(format!("no end of the line within {LINE_BYTES_MAX} bytes")));
            }
            let Some(shape) = &shape else {
                shape = Some(header(&text).map_err(fault)?);
                continue;
            };
            if steps.len() == STEPS_MAX {
                return Err(fault(format!("more than {STEPS_MAX} steps")));
            }
            let step: TraceStep =
                serde_json::from_slice(&text).map_err(|e| fault(e.to_string()))?;
            check(shape, &step).map_err(fault)?;
            steps.push(step);
        }
        let shape = shape.ok_or_else(|| EngineError::Trace {
            file: name.to_owned(),
            line: 1,
            reason: "no header".into(),
        })?;
        Ok(Self { shape, steps })
    }

    /// Writes the trace in the format of [`RoutingTrace::read`].
    ///
    /// # Errors
    /// Returns an error if the write fails.
    pub fn write(&self, out: impl Write) -> Result<(), std::io::Error> {
        let mut writer = TraceWriter::new(out, &self.shape)?;
        for step in &self.steps {
            writer.step(step)?;
        }
        writer.finish().map(drop)
    }

    /// Returns the total rows of all steps, taking the maximum over a step's layers.
    pub fn rows(&self) -> usize {
        let of_step = |step: &TraceStep| {
            let rows = step.layers.iter().map(|layer| layer.rows(self.shape.experts_per_token));
            // Default: a step without expert layers has no rows.
            rows.max().unwrap_or(0)
        };
        self.steps.iter().map(of_step).sum()
    }
}

impl LayerRouting {
    /// Returns the number of rows of the layer.
    pub fn rows(&self, experts_per_token: u32) -> usize {
        self.ids.len() / (experts_per_token as usize).max(1)
    }
}

fn header(text: &[u8]) -> Result<TraceShape, String> {
    let header: Header = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let Header { nestling_routing_trace: version, experts, experts_per_token } = header;
    if version != VERSION {
        return Err(format!("version {version}, expected {VERSION}"));
    }
    if experts.len() > MAX_LAYERS {
        return Err(format!("{} layers, at most {MAX_LAYERS}", experts.len()));
    }
    if let Some(count) = experts.iter().find(|count| **count as usize > MAX_EXPERTS) {
        return Err(format!("{count} experts, at most {MAX_EXPERTS}"));
    }
    if !(1..=MAX_EXPERTS_PER_TOKEN).contains(&(experts_per_token as usize)) {
        return Err(format!("{experts_per_token} experts per token, 1 to {MAX_EXPERTS_PER_TOKEN}"));
    }
    Ok(TraceShape { experts, experts_per_token })
}

fn check(shape: &TraceShape, step: &TraceStep) -> Result<(), String> {
    if step.layers.len() != shape.experts.len() {
        return Err(format!("{} layers, expected {}", step.layers.len(), shape.experts.len()));
    }
    for (number, (layer, experts)) in step.layers.iter().zip(&shape.experts).enumerate() {
        let entries = layer.ids.len();
        if layer.weights.len() != entries || layer.levels.len() != entries {
            let (weights, levels) = (layer.weights.len(), layer.levels.len());
            return Err(format!(
                "layer {number}: {entries} experts, {weights} weights, {levels} levels"
            ));
        }
        if !entries.is_multiple_of(shape.experts_per_token as usize) {
            return Err(format!(
                "layer {number}: {entries} experts, no multiple of {}",
                shape.experts_per_token
            ));
        }
        if let Some(id) = layer.ids.iter().find(|id| *id >= experts) {
            return Err(format!("layer {number}: expert {id} of {experts}"));
        }
        if let Some(weight) = layer.weights.iter().find(|weight| !weight.is_finite()) {
            return Err(format!("layer {number}: weight {weight}"));
        }
        if let Some(bits) = layer.levels.iter().find(|bits| Level::from_bits(**bits).is_none()) {
            return Err(format!("layer {number}: level {bits}"));
        }
    }
    Ok(())
}
