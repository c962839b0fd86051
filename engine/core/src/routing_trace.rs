//! Which experts every row of every step was sent to: recorded from a model or made from a seed.
//!
//! On disk a trace is lines of JSON: a header, then one line per step. Everything is checked on
//! load against the header and against limits, before it is used.

use std::io::{BufRead, Write};

use nestling_formats::Level;
use nestling_import::limits::{MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN, MAX_LAYERS};
use serde::{Deserialize, Serialize};

use crate::backend::Routing;
use crate::error::EngineError;

/// Version of the lines below.
const VERSION: u32 = 1;

/// Bytes of one line.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Steps of one trace.
const STEPS_MAX: usize = 1 << 20;

/// The routing of one layer in one step, row by row, `experts_per_token` entries for each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRouting {
    /// Experts.
    pub ids: Vec<u32>,
    /// The router's weights of them.
    pub weights: Vec<f32>,
    /// Bits of the level that each is computed at.
    pub levels: Vec<u8>,
}

impl LayerRouting {
    /// The routing of so many rows, levels aside.
    pub fn routing(&self, rows: usize) -> Routing {
        Routing {
            // Default: a layer without rows has no uses.
            num_experts_per_tok: self.ids.len().checked_div(rows).unwrap_or(0),
            expert_ids: self.ids.clone(),
            expert_weights: self.weights.clone(),
        }
    }
}

/// One step: its layers in order, those without experts empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceStep {
    /// Routing of each layer.
    pub layers: Vec<LayerRouting>,
}

/// The model that a trace is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceShape {
    /// Experts of each layer; 0 for layers without.
    pub experts: Vec<u32>,
    /// Experts that a row is sent to.
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

/// Steps of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingTrace {
    /// The model.
    pub shape: TraceShape,
    /// Its steps, in order.
    pub steps: Vec<TraceStep>,
}

/// Writes a trace step by step, so that a recording needs no memory of its own.
pub struct TraceWriter<W: Write> {
    out: W,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// A failed write.
    pub fn new(mut out: W, shape: &TraceShape) -> Result<Self, std::io::Error> {
        let header = Header {
            nestling_routing_trace: VERSION,
            experts: shape.experts.clone(),
            experts_per_token: shape.experts_per_token,
        };
        line(&mut out, &header)?;
        Ok(Self { out })
    }

    /// Adds a step.
    ///
    /// # Errors
    /// A failed write.
    pub fn step(&mut self, step: &TraceStep) -> Result<(), std::io::Error> {
        line(&mut self.out, step)
    }

    /// What was written to, with nothing left behind.
    ///
    /// # Errors
    /// A failed write.
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
    /// Reads and checks a trace; `name` is for messages.
    ///
    /// # Errors
    /// [`EngineError::Trace`] that names the line.
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

    /// Writes the trace as [`RoutingTrace::read`] reads it.
    ///
    /// # Errors
    /// A failed write.
    pub fn write(&self, out: impl Write) -> Result<(), std::io::Error> {
        let mut writer = TraceWriter::new(out, &self.shape)?;
        for step in &self.steps {
            writer.step(step)?;
        }
        writer.finish().map(drop)
    }

    /// Rows of all steps, as the first layer with experts has them.
    pub fn rows(&self) -> usize {
        let of_step = |step: &TraceStep| {
            let rows = step.layers.iter().map(|layer| layer.rows(self.shape.experts_per_token));
            // Default: a step without layers with experts has no rows.
            rows.max().unwrap_or(0)
        };
        self.steps.iter().map(of_step).sum()
    }
}

impl LayerRouting {
    /// Rows of the layer.
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
