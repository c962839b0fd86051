//! Division of attention by heads: each rank computes some key heads with the query heads that share them, and holds
//! the pages of these alone.

use std::ops::Range;

use nestling_formats::MatrixKind;
use nestling_import::{AttentionConfig, LayerConfig, ModelConfig, QkNorm, TokenMixer};
use serde::{Deserialize, Serialize};

use crate::group::{RankShare, UNIT_ROWS};
use crate::kv_cache::{KvDtype, KvShape};

/// Division of keys and values over the ranks of a model. Never changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvDivision {
    /// Every rank computes all heads and holds all pages, so that a lost rank can be replaced.
    #[default]
    Replicated,
    /// Each rank computes a run of whole key heads, with their query heads, and holds their pages. A lost rank cannot be
    /// replaced. Layers that cannot be divided are replicated; see [`KvDivision::held_heads`].
    #[serde(rename = "heads")]
    ByHeads,
}

/// Heads of a layer that a rank computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldHeads {
    /// Key heads.
    pub keys: Range<usize>,
    /// Query heads that share them.
    pub queries: Range<usize>,
    /// Rows of the projection to gates of these heads, if each rank computes its own. Otherwise its rows are divided like
    /// those of other matrices.
    pub gates: Option<Range<usize>>,
    /// Elements of a head.
    pub head_dim: usize,
}

impl HeldHeads {
    /// Returns the rows of a matrix that belong to the heads, or `None` for matrices that heads do not divide.
    pub fn rows(&self, kind: MatrixKind) -> Option<Range<usize>> {
        let of = |heads: &Range<usize>| heads.start * self.head_dim..heads.end * self.head_dim;
        match kind {
            MatrixKind::Query => Some(of(&self.queries)),
            MatrixKind::Key | MatrixKind::Value => Some(of(&self.keys)),
            MatrixKind::QueryGate => self.gates.clone(),
            _ => None,
        }
    }
}

impl KvDivision {
    /// Returns the heads of a layer that a rank computes, or `None` if every rank computes all of them. These layers are
    /// not divided:
    ///
    /// - those without keys and values per head: latent attention and recurrent mixers;
    /// - those with fewer key heads than ranks;
    /// - those with norms over all heads together;
    /// - those where a rank's heads would not be whole tiles of [`UNIT_ROWS`] rows, as codes are stored.
    pub fn held_heads(self, layer: &LayerConfig, share: RankShare) -> Option<HeldHeads> {
        let TokenMixer::Attention(attention) = &layer.mixer else { return None };
        let AttentionConfig { num_attention_heads, num_key_value_heads, head_dim, .. } = *attention;
        if self == Self::Replicated || attention.qk_norm == QkNorm::FullWidth {
            return None;
        }
        let shared = num_attention_heads.checked_div(num_key_value_heads)?;
        let of_rank = |share: RankShare| share.heads(num_key_value_heads);
        let are_tiles = |rows_of_head: usize| {
            let mut heads = share.all().map(of_rank);
            heads.all(|heads| {
                heads.is_some_and(|heads| (heads.start * rows_of_head).is_multiple_of(UNIT_ROWS))
            })
        };
        if !are_tiles(head_dim) {
            return None;
        }
        let keys = of_rank(share)?;
        let gates = attention.output_gate.count(shared, head_dim);
        Some(HeldHeads {
            queries: keys.start * shared..keys.end * shared,
            gates: are_tiles(gates).then(|| keys.start * gates..keys.end * gates),
            keys,
            head_dim,
        })
    }

    /// Returns the shape of a rank's pages of a layer, or `None` if the layer has no KV cache.
    pub fn kv_shape(
        self,
        layer: &LayerConfig,
        dtype: KvDtype,
        pages: usize,
        share: RankShare,
    ) -> Option<KvShape> {
        let whole = KvShape::of_layer(layer, dtype, pages)?;
        Some(match self.held_heads(layer, share) {
            Some(held) => KvShape { num_key_value_heads: held.keys.len(), ..whole },
            None => whole,
        })
    }

    /// Returns the size in bytes of a rank's part of a page over all layers.
    pub fn page_bytes(self, config: &ModelConfig, dtype: KvDtype, share: RankShare) -> usize {
        self.layer_page_bytes(config, dtype, share).sum()
    }

    /// Returns the sizes in bytes of a rank's part of a page in each layer with pages.
    pub fn layer_page_bytes(
        self,
        config: &ModelConfig,
        dtype: KvDtype,
        share: RankShare,
    ) -> impl Iterator<Item = usize> {
        let shapes = config.layers.iter();
        let shapes = shapes.filter_map(move |layer| self.kv_shape(layer, dtype, 1, share));
        shapes.map(|shape| shape.page_bytes())
    }

    /// Returns the number of layers with keys and values of which a rank holds some heads, and of those of which it holds all.
    pub fn layers(self, config: &ModelConfig, share: RankShare) -> DividedLayers {
        let has_pages = |layer: &&LayerConfig| KvShape::of_layer(layer, KvDtype::F32, 1).is_some();
        let layers = config.layers.iter().filter(has_pages);
        let of_all = layers.clone().count();
        let divided = layers.filter(|layer| self.held_heads(layer, share).is_some()).count();
        DividedLayers { divided, replicated: of_all - divided }
    }
}

/// Numbers of layers with keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DividedLayers {
    /// Layers of whose heads each rank holds some.
    pub divided: usize,
    /// Layers of which each rank holds all heads.
    pub replicated: usize,
}
