//! Attention with one block for each row, and with one block for each split, gives the same bits.

use nestling_core::kv_cache::PAGE_POSITIONS;
use nestling_cuda::kernel::Kernel;
use nestling_cuda::params::{AttendParams, KvStoreParams, RowPlace, SPLIT_POSITIONS};
use nestling_gpu::{AttendSizes, PageWords, StoreSizes};

use crate::harness::{address, expect_equal, noise, outcome};

const HEADS: usize = 6;
const SHARING: usize = 3;
const KV_HEADS: usize = HEADS / SHARING;

/// Pages with the keys and values of one sequence.
struct Case {
    dim: usize,
    /// Number of leading elements of a key that are its value, or 0 if values are stored separately.
    prefix: usize,
    /// Index of the type: f32, f16, int8.
    kind: usize,
    positions: usize,
}

impl Case {
    fn words(&self) -> usize {
        self.dim >> self.kind
    }

    fn head_words(&self) -> usize {
        let both = if self.prefix == 0 { 2 } else { 1 };
        both * PAGE_POSITIONS * self.words()
    }

    fn page_words(&self) -> usize {
        KV_HEADS * (self.head_words() + 2 * PAGE_POSITIONS)
    }

    fn value_dim(&self) -> usize {
        if self.prefix == 0 { self.dim } else { self.prefix }
    }

    fn pages(&self) -> Vec<u32> {
        let count = self.positions.div_ceil(PAGE_POSITIONS);
        let stride = 2 * KV_HEADS * self.dim;
        let x = noise(self.positions * stride, 1);
        let places: Vec<RowPlace> = (0..self.positions)
            .map(|position| RowPlace { position: position as u32, first_page: 0 })
            .collect();
        let kernel = [Kernel::KvStoreF32, Kernel::KvStoreF16, Kernel::KvStoreInt8][self.kind];
        outcome(&vec![u32::MAX; count * self.page_words()], |out| {
            let pages = self.page_addresses(out, count);
            let params = KvStoreParams {
                x: address(&x),
                places: address(&places),
                pages: address(pages.leak()),
                rows: self.positions as u32,
                sizes: StoreSizes {
                    heads: KV_HEADS as u32,
                    stride: stride as u32,
                    first: 0,
                    head_dim: self.dim as u32,
                    prefix: self.prefix as u32,
                },
                head_words: self.head_words() as u32,
                value_first: (PAGE_POSITIONS * self.words()) as u32,
                scale_first: (KV_HEADS * self.head_words()) as u32,
                padding: 0,
            };
            (params.launch(kernel), params)
        })
    }

    fn page_addresses(&self, first: u64, count: usize) -> Vec<u64> {
        (0..count).map(|page| first + (page * self.page_words() * 4) as u64).collect()
    }

    fn params(&self, rows: usize, window: u32) -> AttendParams {
        let (value_first, value_position, value_word) = match self.prefix {
            0 => (PAGE_POSITIONS * self.words(), self.words(), 1),
            _ => (0, 1, PAGE_POSITIONS),
        };
        let params = AttendParams {
            rows: rows as u32,
            sizes: AttendSizes {
                heads: HEADS as u32,
                sharing: SHARING as u32,
                stride: (HEADS * self.dim) as u32,
                head_dim: self.dim as u32,
                value_dim: self.value_dim() as u32,
                window,
            },
            scale: 0.3,
            words: PageWords {
                head_words: self.head_words() as u32,
                value_first: value_first as u32,
                value_position: value_position as u32,
                value_word: value_word as u32,
                prefix_words: (self.prefix >> self.kind) as u32,
                scale_first: (KV_HEADS * self.head_words()) as u32,
            },
            splits: (self.positions as u32).div_ceil(SPLIT_POSITIONS),
            ..AttendParams::default()
        };
        AttendParams { block_heads: params.block_heads_max(), ..params }
    }

    fn check(&self, window: u32, has_sinks: bool) {
        let words = self.pages();
        let pages = self.page_addresses(address(&words), words.len() / self.page_words());
        let places = [self.positions - 1, 5, PAGE_POSITIONS]
            .map(|position| RowPlace { position: position as u32, first_page: 0 });
        let queries = noise(places.len() * HEADS * self.dim, 2);
        let sinks = noise(HEADS, 3);
        let given = AttendParams {
            queries: address(&queries),
            places: address(&places),
            pages: address(&pages),
            sinks: if has_sinks { address(&sinks) } else { 0 },
            ..self.params(places.len(), window)
        };
        let whole = [Kernel::AttendF32, Kernel::AttendF16, Kernel::AttendInt8][self.kind];
        let split =
            [Kernel::AttendSplitF32, Kernel::AttendSplitF16, Kernel::AttendSplitInt8][self.kind];
        let out = vec![f32::NAN; places.len() * HEADS * self.value_dim()];
        let expected = outcome(&out, |out| {
            let params = AttendParams { out, ..given };
            (params.launch(whole), params)
        });
        assert!(expected.iter().all(|value| value.abs() <= 1.0), "means of values below 1");
        let parts = outcome(&vec![f32::NAN; given.part_floats()], |parts| {
            let params = AttendParams { parts, ..given };
            (params.launch(split), params)
        });
        let merged = outcome(&out, |out| {
            let params = AttendParams { out, parts: address(&parts), ..given };
            (params.merge(), params)
        });
        expect_equal(&format!("{whole:?}, window {window}"), &merged, &expected);
    }
}

#[test]
pub fn splits_give_the_bits_of_whole_rows() {
    for kind in 0..3 {
        let case = Case { dim: 24, prefix: 0, kind, positions: 700 };
        case.check(u32::MAX, kind == 1);
        case.check(300, true);
        let case = Case { dim: 24, prefix: 16, kind, positions: 330 };
        case.check(u32::MAX, false);
    }
}
