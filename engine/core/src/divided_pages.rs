//! Pages of which each rank holds the keys and values of some heads.
//!
//! Pages that leave the model hold all heads, so that they do not depend on the number of ranks. A page is the layers in
//! order, and in each layer the keys and values of the heads in order, followed by their scales in the same order.

use std::ops::Range;

use nestling_import::ModelConfig;

use crate::error::EngineError;
use crate::group::{RankError, RankShare};
use crate::kv_cache::{KvDtype, KvShape, PAGE_POSITIONS};
use crate::kv_heads::KvDivision;

/// Layout of the pages of a model whose attention is divided by heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DividedPages {
    share: RankShare,
    layers: Vec<Layer>,
}

/// Page of one layer with keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    /// Bytes of all heads.
    whole: usize,
    /// Key heads of each rank; empty if every rank holds all.
    heads: Vec<Range<usize>>, // [ranks]
    /// Bytes of a head's keys and values, and of their scales.
    sections: [usize; 2],
}

impl Layer {
    /// Returns the bytes of a rank's part of the layer.
    fn part_bytes(&self, rank: usize) -> usize {
        self.heads.get(rank).map_or(self.whole, |held| held.len() * self.head_bytes())
    }

    fn head_bytes(&self) -> usize {
        self.sections.iter().sum()
    }

    /// Returns the places of a rank's sections among all heads.
    fn places(&self, held: &Range<usize>) -> [Range<usize>; 2] {
        let [elements, scales] = self.sections;
        let first = self.whole / self.head_bytes().max(1) * elements;
        [
            held.start * elements..held.end * elements,
            first + held.start * scales..first + held.end * scales,
        ]
    }
}

impl DividedPages {
    /// Returns the layout on a rank, or `None` if every rank holds whole pages.
    pub fn of(
        config: &ModelConfig,
        dtype: KvDtype,
        division: KvDivision,
        share: RankShare,
    ) -> Option<Self> {
        let layers = config.layers.iter().filter_map(|layer| {
            let shape = KvShape::of_layer(layer, dtype, 1)?;
            let heads = share.all().filter_map(|share| division.held_heads(layer, share));
            let elements = 2 * PAGE_POSITIONS * shape.head_dim * dtype.bytes();
            let scales = 2 * PAGE_POSITIONS * dtype.scale_bytes();
            let heads = heads.map(|held| held.keys).collect();
            Some(Layer { whole: shape.page_bytes(), heads, sections: [elements, scales] })
        });
        let layers: Vec<Layer> = layers.collect();
        let is_divided = layers.iter().any(|layer| !layer.heads.is_empty());
        is_divided.then_some(Self { share, layers })
    }

    /// Returns the bytes of a rank's part of a page.
    pub fn part_bytes(&self, rank: usize) -> usize {
        self.layers.iter().map(|layer| layer.part_bytes(rank)).sum()
    }

    /// Returns the bytes of a page with all heads.
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.whole).sum()
    }

    /// Returns this rank's part of a page with all heads.
    ///
    /// # Errors
    /// Returns an error if the page has another size.
    pub fn own_part(&self, page: &[u8]) -> Result<Vec<u8>, EngineError> {
        if page.len() != self.page_bytes() {
            return Err(EngineError::mismatch("bytes of a page", self.page_bytes(), page.len()));
        }
        let (mut rest, mut part) = (page, Vec::new());
        for layer in &self.layers {
            let (whole, after) = rest.split_at(layer.whole);
            match layer.heads.get(self.share.rank) {
                None => part.extend_from_slice(whole),
                Some(held) => {
                    for place in layer.places(held) {
                        part.extend_from_slice(&whole[place]);
                    }
                }
            }
            rest = after;
        }
        Ok(part)
    }

    /// Joins the parts of all ranks to a page with all heads. Layers that are not divided are those of this rank.
    ///
    /// # Errors
    /// [`RankError::Mismatch`] if a part has another size.
    pub fn join(&self, parts: &[Vec<u8>]) -> Result<Vec<u8>, EngineError> {
        for (rank, bytes) in (0..self.share.ranks).map(|rank| (rank, self.part_bytes(rank))) {
            // Default: a rank without a part sent nothing.
            let found = parts.get(rank).map_or(0, Vec::len);
            if bytes != found {
                let (expected, found) = (format!("{bytes} bytes of a page"), found.to_string());
                return Err(RankError::Mismatch { rank, expected, found }.into());
            }
        }
        let mut page = vec![0; self.page_bytes()];
        for (rank, part) in parts.iter().enumerate().take(self.share.ranks) {
            let (mut rest, mut out) = (&part[..], &mut page[..]);
            for layer in &self.layers {
                let (own, after) = rest.split_at(layer.part_bytes(rank));
                let (whole, after_out) = out.split_at_mut(layer.whole);
                match layer.heads.get(rank) {
                    None if rank == self.share.rank => whole.copy_from_slice(own),
                    None => {}
                    Some(held) => {
                        let [elements, scales] = layer.places(held);
                        let (first, second) = own.split_at(elements.len());
                        whole[elements].copy_from_slice(first);
                        whole[scales].copy_from_slice(second);
                    }
                }
                (rest, out) = (after, after_out);
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a layer of three heads over two ranks and one that is not divided, on each rank.
    fn pages() -> [DividedPages; 2] {
        [0, 1].map(|rank| {
            let share = RankShare { rank, ranks: 2 };
            let heads = share.all().filter_map(|share| share.heads(3)).collect();
            let divided = Layer { whole: 18, heads, sections: [4, 2] };
            let whole = Layer { whole: 5, heads: Vec::new(), sections: [5, 0] };
            DividedPages { share, layers: vec![divided, whole] }
        })
    }

    #[test]
    fn parts_of_all_ranks_are_the_whole_page() {
        let page: Vec<u8> = (0..23).collect();
        let parts = pages().map(|pages| pages.own_part(&page).unwrap());
        // Elements of the first head, its scales, and the other layer.
        assert_eq!(parts[0], [0, 1, 2, 3, 12, 13, 18, 19, 20, 21, 22]);
        assert_eq!(parts[1], [4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22]);
        for pages in pages() {
            assert_eq!(pages.join(&parts).unwrap(), page);
            assert_eq!((0..2).map(|rank| pages.part_bytes(rank)).sum::<usize>(), 23 + 5);
        }
    }

    #[test]
    fn other_sizes_are_refused() {
        let [pages, _] = pages();
        assert!(pages.own_part(&[0; 22]).is_err());
        let parts = [vec![0; 11], vec![0; 17]];
        assert!(pages.join(&parts).is_ok());
        for wrong in [&parts[..1], &[], &[vec![0; 12], vec![0; 16]], &[vec![0; 11], Vec::new()]] {
            let error = pages.join(wrong).unwrap_err();
            assert!(matches!(error, EngineError::Rank(RankError::Mismatch { .. })), "{error}");
        }
    }
}
