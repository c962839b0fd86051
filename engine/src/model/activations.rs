//! Buffers of one step, and the angles of its positions.

use nestling_formats::{FeedForward, ModelConfig};

use crate::backend::{Backend, Encoder};
use crate::batch::StepRows;
use crate::error::EngineError;

/// What a step computes in. T = rows of the step.
pub(super) struct Activations<B: Backend> {
    /// Residual stream.
    pub x: B::Buffer, // [T, hidden_size]
    /// The rows of `x` that want logits.
    pub tail: B::Buffer, // [rows with logits, hidden_size]
    /// A normed `x`.
    pub normed: B::Buffer, // [T, hidden_size]
    /// Queries, keys and values side by side.
    pub qkv: B::Buffer, // [T, (H + 2 G) * head_dim]
    /// Keys and values of the last layer, where only some rows want logits.
    pub keys_values: B::Buffer, // [T, 2 G * head_dim]
    /// Queries of those rows.
    pub queries: B::Buffer, // [rows with logits, H * head_dim]
    /// What the heads gathered.
    pub attended: B::Buffer, // [T, H * head_dim]
    /// Cosines and sines of the positions.
    pub rope: B::Buffer, // [T, head_dim]
    /// Those of the rows that want logits.
    pub rope_tail: B::Buffer, // [rows with logits, head_dim]
    /// The experts of every row.
    pub routing: B::Routing, // [T, K]
    /// What the next layer's router would see if this layer had no experts.
    pub ahead: B::Buffer, // [T, hidden_size]
    /// The experts that it would choose.
    pub predicted: B::Routing, // [T, K]
    /// Outputs of the experts, before they are weighted and summed.
    pub expert_rows: B::Buffer, // [T * K, hidden_size]
    /// Logits of the rows that want them.
    pub logits: B::Buffer, // [rows with logits, vocab_size]
}

impl<B: Backend> Activations<B> {
    pub fn new(
        backend: &mut B,
        config: &ModelConfig,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        let (h, g, d) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let experts_per_token = config.layers.iter().map(|layer| match layer.feed_forward {
            FeedForward::Dense { .. } => 0,
            FeedForward::Moe { num_experts_per_tok, .. } => num_experts_per_tok,
        });
        let experts_per_token = experts_per_token.max().unwrap_or(0);
        Ok(Self {
            x: backend.buffer(rows_max, config.hidden_size)?,
            tail: backend.buffer(rows_max, config.hidden_size)?,
            normed: backend.buffer(rows_max, config.hidden_size)?,
            qkv: backend.buffer(rows_max, (h + 2 * g) * d)?,
            keys_values: backend.buffer(rows_max, 2 * g * d)?,
            queries: backend.buffer(rows_max, h * d)?,
            attended: backend.buffer(rows_max, h * d)?,
            rope: backend.buffer(rows_max, d)?,
            rope_tail: backend.buffer(rows_max, d)?,
            routing: backend.routing(rows_max, experts_per_token)?,
            ahead: backend.buffer(rows_max, config.hidden_size)?,
            predicted: backend.routing(rows_max, experts_per_token)?,
            expert_rows: backend.buffer(rows_max * experts_per_token, config.hidden_size)?,
            logits: backend.buffer(rows_max, config.vocab_size)?,
        })
    }
}

impl<B: Backend> Activations<B> {
    /// Keeps the rows that want logits of what the rest of the last layer reads.
    pub fn keep(&mut self, encoder: &mut B::Encoder<'_>, rows: &[u32]) -> Result<(), EngineError> {
        let Self { x, normed, tail, rope, rope_tail, .. } = self;
        for buffer in [x, normed] {
            encoder.gather_rows(buffer, rows, tail)?;
            std::mem::swap(buffer, tail);
        }
        encoder.gather_rows(rope, rows, rope_tail)?;
        std::mem::swap(rope, rope_tail);
        Ok(())
    }
}

/// Rotary angles. Frequencies and angles are rounded to f32, as in the code that models are
/// trained with; cosine and sine are then exact but for their last rounding.
pub(crate) struct RopeAngles {
    frequencies: Vec<f32>, // [head_dim / 2]
}

impl RopeAngles {
    pub fn new(head_dim: usize, theta: f64) -> Self {
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            1.0 / (libm::pow(theta, f64::from(exponent)) as f32)
        };
        Self { frequencies: (0..head_dim / 2).map(frequency).collect() }
    }

    /// Cosines and sines of each row's position, `[T, head_dim]`.
    pub fn of_rows(&self, rows: &StepRows) -> Vec<f32> {
        let mut angles = Vec::new();
        self.fill(rows, &mut angles);
        angles
    }

    /// [`Self::of_rows`] in place of what `angles` held.
    pub fn fill(&self, rows: &StepRows, angles: &mut Vec<f32>) {
        angles.clear();
        for &position in &rows.positions {
            let angle = |frequency: &f32| f64::from(position as f32 * frequency);
            angles.extend(self.frequencies.iter().map(|f| libm::cos(angle(f)) as f32));
            angles.extend(self.frequencies.iter().map(|f| libm::sin(angle(f)) as f32));
        }
    }
}
