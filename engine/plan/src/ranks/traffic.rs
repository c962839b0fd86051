//! Exchanges of a step, and their bytes.

use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::kv_heads::KvDivision;
use nestling_core::rank_bytes::{DenseDivision, can_slice, held_rows};
use nestling_formats::MatrixKind;
use nestling_formats::store::{Group, GroupId, Index};
use nestling_import::{FeedForward, ModelConfig, TokenMixer};

use super::fabric::Operation;

/// Matrices of a layer whose products are one operation, and so one exchange. The inner activations of a feed-forward part
/// are gathered once for gate, if there is one, and up. Kinds that are not listed are held by every rank.
const PRODUCTS: [&[MatrixKind]; 14] = [
    &[MatrixKind::Query, MatrixKind::Key, MatrixKind::Value],
    &[MatrixKind::QueryGate],
    &[MatrixKind::LatentDown],
    &[MatrixKind::QueryDown],
    &[MatrixKind::QueryUp],
    &[MatrixKind::DeltaIn, MatrixKind::DeltaGate, MatrixKind::DeltaBetaDecay],
    &[MatrixKind::Output],
    &[MatrixKind::DeltaOut],
    &[MatrixKind::ShortConvIn],
    &[MatrixKind::ShortConvOut],
    &[MatrixKind::Mamba2In],
    &[MatrixKind::Mamba2Out],
    &[MatrixKind::Up],
    &[MatrixKind::Down],
];

/// Division of a model over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankDivision {
    /// Division of the experts.
    pub experts: ExpertDivision,
    /// Division of keys and values.
    pub kv: KvDivision,
}

impl From<ExpertDivision> for RankDivision {
    fn from(experts: ExpertDivision) -> Self {
        Self { experts, kv: KvDivision::default() }
    }
}

/// Bytes of a value that ranks exchange.
const VALUE_BYTES: f64 = 4.0;

/// An exchange. Bytes are those of a row, for a rank of mean load, to or from all others together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedExchange {
    /// Kind of the exchange.
    pub operation: Operation,
    /// Bytes that a rank receives.
    pub received_bytes: f64,
    /// True if a rank sends in proportion to the experts that it computed.
    pub by_load: bool,
}

/// Exchanges of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Number of ranks.
    pub ranks: usize,
    /// Exchanges of the embedding, for all rows of a step. An embedding that is read from the store row by row has none.
    pub embedding: Vec<PlannedExchange>,
    /// Exchanges of each layer, for all rows of a step.
    pub layers: Vec<Vec<PlannedExchange>>,
    /// Exchanges of the head, for the rows whose logits were requested.
    pub head: Vec<PlannedExchange>,
}

impl Traffic {
    /// Returns the exchanges of a step of a store's model. In the last layer of a prompt, which continues with few rows,
    /// a step has one exchange more, and fewer bytes.
    pub fn of_index(
        index: &Index,
        config: &ModelConfig,
        ranks: usize,
        division: impl Into<RankDivision>,
    ) -> Self {
        let division = division.into();
        let share = RankShare { rank: 0, ranks };
        let dense_division = DenseDivision { config, kv: division.kv, share };
        let layers = (0u32..).zip(&config.layers).map(|(layer, parts)| {
            // Default: a layer that the store lacks has no exchanges; opening refuses such a store.
            let dense = index.group(&GroupId::Dense { layer });
            let mut exchanges =
                dense.map_or_else(Vec::new, |group| gathers(group, &dense_division));
            exchanges.extend(attended(layer, &dense_division));
            if let FeedForward::Moe { num_experts_per_tok, moe_intermediate_size, .. } =
                parts.feed_forward
            {
                let (chosen, inner) = (num_experts_per_tok, moe_intermediate_size);
                let hidden = config.hidden_size;
                exchanges.extend(match division.experts {
                    ExpertDivision::Sliced if can_slice(inner, hidden, share) => {
                        sliced_mixture(chosen, inner, hidden, share)
                    }
                    _ => mixture(chosen, hidden, ranks),
                });
            }
            exchanges
        });
        let embedding = index.group(&GroupId::Embedding);
        // Default: without a head of its own, a model multiplies with the embedding.
        let head = index.group(&GroupId::Head).or(embedding);
        let is_divided = |group: Option<&Group>| {
            let matrix = group.and_then(|group| group.matrices.first());
            matrix.and_then(|matrix| held_rows(matrix.kind, matrix.rows, share)).is_some()
        };
        // Default: without an embedding of its own, a model looks its tokens up in the head.
        let embedding = is_divided(embedding.or(head)).then(|| gather(config.hidden_size, ranks));
        let head = is_divided(head).then(|| gather(config.vocab_size, ranks));
        Self {
            ranks,
            embedding: embedding.into_iter().collect(),
            layers: layers.collect(),
            head: head.into_iter().collect(),
        }
    }

    /// Returns the number of exchanges of a step, with the report of all ranks at its end.
    pub fn exchanges(&self) -> usize {
        let layers = self.layers.iter().map(Vec::len).sum::<usize>();
        self.embedding.len() + layers + self.head.len() + 1
    }

    /// Returns the number of messages that a rank sends in a step. Rank 0 also sends its order to each other rank.
    pub fn messages(&self) -> usize {
        self.exchanges() * self.ranks.saturating_sub(1)
    }

    /// Returns the bytes that a rank receives for a row whose logits are requested, without the order and the report.
    pub fn row_bytes(&self) -> f64 {
        let exchanges = self.embedding.iter().chain(self.layers.iter().flatten());
        exchanges.chain(&self.head).map(|exchange| exchange.received_bytes).sum()
    }
}

/// Returns whether experts can be sliced so that each rank has an equal load: each gets some of their inner rows, and of
/// their outputs.
pub fn can_be_sliced(config: &ModelConfig, ranks: usize) -> bool {
    let is_divided = |rows| RankShare { rank: 0, ranks }.rows(rows).is_some();
    config.has_experts()
        && config.layers.iter().all(|layer| match layer.feed_forward {
            FeedForward::Moe { moe_intermediate_size, .. } => {
                is_divided(moe_intermediate_size) && is_divided(config.hidden_size)
            }
            FeedForward::Absent | FeedForward::Dense { .. } => true,
        })
}

/// Returns the gathers of a group's divided matrices. Outputs for a rank's own heads are not gathered.
fn gathers(group: &Group, division: &DenseDivision<'_>) -> Vec<PlannedExchange> {
    let heads = match group.id {
        GroupId::Dense { layer } => division.held_heads(layer),
        _ => None,
    };
    let is_of_heads = |kind| heads.as_ref().is_some_and(|heads| heads.rows(kind).is_some());
    let share = division.share;
    let of_product = |kinds: &&[MatrixKind]| {
        let matrices = group.matrices.iter().filter(|matrix| kinds.contains(&matrix.kind));
        let divided = matrices.filter(|matrix| {
            held_rows(matrix.kind, matrix.rows, share).is_some() && !is_of_heads(matrix.kind)
        });
        let rows: usize = divided.map(|matrix| matrix.rows).sum();
        (rows > 0).then(|| gather(rows, share.ranks))
    };
    PRODUCTS.iter().filter_map(of_product).collect()
}

/// Returns the gather of the heads that ranks attended to, if they are divided.
fn attended(layer: u32, division: &DenseDivision<'_>) -> Option<PlannedExchange> {
    division.held_heads(layer)?;
    match &division.config.layers.get(layer as usize)?.mixer {
        TokenMixer::Attention(heads) => {
            Some(gather(heads.num_attention_heads * heads.head_dim, division.share.ranks))
        }
        _ => None,
    }
}

/// Returns the gather of `columns` values of a row.
fn gather(columns: usize, ranks: usize) -> PlannedExchange {
    let elsewhere = (ranks - 1) as f64 / ranks as f64;
    PlannedExchange {
        operation: Operation::AllGather,
        received_bytes: VALUE_BYTES * columns as f64 * elsewhere,
        by_load: false,
    }
}

/// Returns the exchanges of a mixture of whole experts.
fn mixture(chosen: usize, hidden: usize, ranks: usize) -> Vec<PlannedExchange> {
    if ranks < 2 {
        return Vec::new();
    }
    let elsewhere = (ranks - 1) as f64 / ranks as f64;
    // A rank's columns of the expert rows of others, each with its number.
    let columns = VALUE_BYTES * (1.0 + hidden as f64 / ranks as f64);
    let rows = PlannedExchange {
        operation: Operation::Exchange,
        received_bytes: chosen as f64 * elsewhere * columns,
        by_load: true,
    };
    vec![rows, gather(hidden, ranks)]
}

/// Returns the exchanges of a mixture of sliced experts: the inner activations of all expert rows, and the sums.
fn sliced_mixture(
    chosen: usize,
    inner: usize,
    hidden: usize,
    share: RankShare,
) -> Vec<PlannedExchange> {
    let inner_rows = share.rows(inner).map(|_| gather(chosen * inner, share.ranks));
    let sums = share.rows(hidden).map(|_| gather(hidden, share.ranks));
    inner_rows.into_iter().chain(sums).collect()
}
