//! The forward pass. `resume.rs` decides which layers run when, and handles expert misses.
//!
//! ```text
//! x = embed(tokens)
//! in every layer:
//!     x += mix(norm(x))
//!     x += dense(norm(x)) + Σ weight · expert(norm(x))    unless the layer is a mixer alone
//! logits = head(norm(x))
//! ```

use nestling_formats::Level;

use super::activations::Activations;
use super::memory::LayerMemory;
use super::mixer::{MixerArgs, NoopObserver, ResidualAdd, mix};
use super::weights::{LayerWeights, Weights};
use nestling_core::backend::{Backend, Encoder, Router, Write};
use nestling_core::batch::{StepOutputKind, StepRows};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::routing_trace::TraceStep;
use nestling_core::runner::{StepOutput, StepStats};
use nestling_experts::expert::{EmbeddedRows, RequestScratch};

/// Mutable state of a step.
pub(super) struct Step<'a, B: Backend> {
    /// All rows. KV entries are stored for each of them.
    pub rows: &'a mut StepRows,
    /// Indices of the rows with requested logits.
    pub logit_rows: &'a [u32],
    /// RoPE cosines and sines of the rows' positions, one vector per kind of angles.
    pub angles: &'a [Vec<f32>], // [T, dims]
    pub act: &'a mut Activations<B>,
    pub embedded: &'a mut EmbeddedRows,
    pub requests: &'a mut RequestScratch<B>,
    pub predictions: &'a mut RequestScratch<B>,
    pub memory: &'a mut [LayerMemory<B>], // [layers]
    /// Recorded routing to use instead of the routers' choices.
    pub replayed: Option<&'a TraceStep>,
    pub cancel: &'a CancelToken,
    pub stats: &'a mut StepStats,
    pub output_kind: StepOutputKind,
    /// Receives the requested outputs.
    pub output: &'a mut StepOutput,
}

pub(super) struct Graph<'a, 'e, B: Backend + 'e> {
    pub w: &'a Weights<B>,
    pub eps: f32,
    pub enc: B::Encoder<'e>,
    pub step: Step<'a, B>,
}

impl<B: Backend> Graph<'_, '_, B> {
    /// Computes the embeddings of the tokens, and uploads the angles of their positions.
    pub fn embed(&mut self) -> Result<(), EngineError> {
        let Self { w, enc, step, .. } = self;
        let Step { rows, angles, act, embedded, .. } = step;
        w.embedding.embed(&w.head[0], enc, rows, embedded, &mut act.x, step.cancel)?; // [T, D]
        scale::<B>(enc, w.multipliers.embedding, &mut act.x)?;
        angles.iter().zip(&mut act.ropes).try_for_each(|(angles, rope)| enc.write(angles, rope))
    }

    /// Computes a layer up to the choice of its experts. Returns false if no row has requested logits.
    pub fn until_experts(&mut self, layer: usize) -> Result<bool, EngineError> {
        let (logit_rows, is_last) = (self.step.logit_rows, self.narrows(layer));
        let tail = is_last.then_some(logit_rows);
        let Self { w, eps, enc, step } = self;
        let (lw, eps) = (&w.layers[layer], *eps);
        let Step { rows, act, memory, replayed, .. } = step;

        // Token mixer: x += mix(norm(x)).
        enc.rms_norm(&act.x, &lw.attention_norm, eps, Write::Set, &mut act.normed)?;
        let norm = lw.norms_after.as_ref().map(|norms| (&norms.attention, eps));
        let residual = ResidualAdd { multiplier: w.multipliers.residual, norm };
        let args = MixerArgs { rows, tail, act, memory: &mut memory[layer], residual };
        mix(enc, &lw.mixer, args, &mut NoopObserver)?;
        if tail.is_some_and(<[u32]>::is_empty) {
            enc.flush()?;
            return Ok(false);
        }

        // Feed-forward part: x += dense(norm(x)) + Σ weight · expert(norm(x)).
        // Default: a mixer alone adds nothing more.
        let Some(norm) = &lw.feed_forward_norm else { return Ok(true) };
        enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.normed)?;
        add_dense(enc, lw, &rows.dense_levels, eps, act)?;
        if let Some(router) = &lw.router {
            route(enc, lw, router, eps, act)?;
            if let Some(routing) = replayed.and_then(|step| step.layers.get(layer)) {
                enc.write_routing(&routing.routing(rows.len()), &mut act.routing)?;
            }
        }
        Ok(true)
    }

    /// Computes the rest of a layer after its experts.
    pub fn after_experts(&mut self, layer: usize) -> Result<(), EngineError> {
        let Self { w, eps, enc, step: Step { rows, act, .. } } = self;
        let lw = &w.layers[layer];
        if lw.router.is_some() {
            add_experts(enc, lw, rows.len(), *eps, act)?;
        }
        let Some(norms) = &lw.norms_after else { return Ok(()) };
        enc.rms_norm(&act.branch, &norms.feed_forward, *eps, Write::Add, &mut act.x)?;
        scale::<B>(enc, norms.layer_scalar, &mut act.x)
    }

    /// Computes the requested outputs of the rows with requested logits.
    pub async fn logits(&mut self) -> Result<(), EngineError> {
        let Self { w, eps, enc, step } = self;
        let Step { rows, act, output, .. } = step;
        enc.rms_norm(&act.x, &w.final_norm, *eps, Write::Set, &mut act.normed)?;
        if step.output_kind.has_hidden() {
            enc.read_into(&act.normed, &mut output.hidden).await?;
        }
        if step.output_kind == StepOutputKind::Hidden {
            return Ok(());
        }
        enc.matmul(&w.head, &rows.dense_levels, &act.normed, Write::Set, &mut act.logits)?;
        scale::<B>(enc, w.multipliers.logits, &mut act.logits)?;
        if let Some(cap) = w.softcap {
            enc.softcap(cap, &mut act.logits)?;
        }
        match step.output_kind {
            StepOutputKind::Argmax(among) => {
                enc.argmax_into(&act.logits, among, &mut output.best).await
            }
            StepOutputKind::Logits | StepOutputKind::HiddenAndLogits => {
                enc.read_into(&act.logits, &mut output.logits).await
            }
            StepOutputKind::Hidden => Ok(()),
        }
    }

    /// Returns true if the layer continues with a subset of the rows: the last layer, if some rows have no
    /// requested logits.
    pub fn narrows(&self, layer: usize) -> bool {
        layer + 1 == self.w.layers.len() && self.step.logit_rows.len() < self.step.rows.len()
    }
}

/// Adds the dense part or the shared expert:
///
/// ```text
/// x += dense(norm(x)) + Σ weight · expert(norm(x))
/// x += norm(norm(dense(norm(x))) + norm(Σ weight · expert(norm(x))))    with norms after parts
/// ```
fn add_dense<B: Backend>(
    enc: &mut B::Encoder<'_>,
    lw: &LayerWeights<B>,
    levels: &[Level],
    eps: f32,
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    let (norm, out) = match &lw.norms_after {
        None => (None, &mut act.x),
        Some(norms) => {
            enc.clear(levels.len(), &mut act.branch)?;
            (norms.shared.as_ref(), &mut act.branch)
        }
    };
    let Some(shared) = &lw.shared else { return Ok(()) };
    match (&shared.gate, norm) {
        (None, None) => enc.ffn(&shared.ffn, levels, &act.normed, Write::Add, out),
        (None, Some(norm)) => {
            enc.ffn(&shared.ffn, levels, &act.normed, Write::Set, &mut act.shared)?;
            enc.rms_norm(&act.shared, norm, eps, Write::Add, out)
        }
        (Some(gate), None) => {
            let gate = std::slice::from_ref(gate);
            enc.matmul(gate, levels, &act.normed, Write::Set, &mut act.gate)?; // [T, 1]
            enc.ffn(&shared.ffn, levels, &act.normed, Write::Set, &mut act.shared)?;
            enc.add_gated(&act.gate, &act.shared, out)
        }
        (Some(_), Some(_)) => {
            let what = "a shared expert with a gate";
            Err(EngineError::mismatch(what, "no norm after it", "one"))
        }
    }
}

/// Routes the rows, and leaves the experts' inputs in `act.normed`.
pub fn route<B: Backend>(
    enc: &mut B::Encoder<'_>,
    lw: &LayerWeights<B>,
    router: &Router<B>,
    eps: f32,
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    match &lw.router_norm {
        None => enc.route(router, &act.normed, &mut act.routing)?, // [T, K]
        Some(norm) => {
            enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.ahead)?;
            enc.route(router, &act.ahead, &mut act.routing)?;
        }
    }
    match lw.norm_before_experts() {
        None => Ok(()),
        Some(norm) => enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.normed),
    }
}

/// Predicts the routing of a later layer from the present hidden state, ignoring the layers between.
pub(super) fn predict<B: Backend>(
    enc: &mut B::Encoder<'_>,
    norm: &B::Floats,
    router: &Router<B>,
    eps: f32,
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.ahead)?;
    enc.route(router, &act.ahead, &mut act.predicted)
}

fn add_experts<B: Backend>(
    enc: &mut B::Encoder<'_>,
    lw: &LayerWeights<B>,
    rows: usize,
    eps: f32,
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    let (norm, out) = match &lw.norms_after {
        None => (None, &mut act.x),
        Some(norms) => (norms.experts.as_ref(), &mut act.branch),
    };
    let Some(norm) = norm else {
        return enc.experts_sum(&act.routing, &mut act.expert_rows, out);
    };
    enc.clear(rows, &mut act.shared)?;
    enc.experts_sum(&act.routing, &mut act.expert_rows, &mut act.shared)?;
    enc.rms_norm(&act.shared, norm, eps, Write::Add, out)
}

/// Multiplies by a constant, which is 1 in most families.
fn scale<B: Backend>(
    enc: &mut B::Encoder<'_>,
    factor: f32,
    x: &mut B::Buffer,
) -> Result<(), EngineError> {
    if factor == 1.0 { Ok(()) } else { enc.scale(factor, x) }
}
