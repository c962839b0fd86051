//! Experts of a routing, looked up on the device: blocks of products, and missing experts.

use std::collections::BTreeMap;

use nestling_cuda::params::{Block, ExpertBlocksParams, ExpertEntry, Pair};

use crate::harness::{address, outcome};

const EXPERTS: usize = 6;
const INNER_ROWS: u32 = 40;
const OUT_ROWS: u32 = 72;
const BIASES: u64 = 1 << 20;
const CALL: u32 = 7;

/// A routing and the resident levels of experts.
struct Case {
    ids: Vec<u32>, // [rows, per_token]
    weights: Vec<f32>,
    levels: Vec<u32>, // [rows]
    /// Number of resident levels of each expert.
    held: [u32; EXPERTS],
    least: Option<Vec<u32>>, // [EXPERTS, 4]
    together: u32,
}

struct ExpertTables {
    inner: Vec<Block>,
    outer: Vec<Block>,
    pairs: [Vec<Pair>; 2],
    notes: Vec<u32>,
    halt: u32,
}

impl Case {
    fn new(rows: &[&[u32]], levels: &[u32]) -> Self {
        let ids = rows.concat();
        let weights = vec![0.0; ids.len()];
        Self { ids, weights, levels: levels.to_vec(), held: [5; EXPERTS], least: None, together: 2 }
    }

    fn run(&self) -> ExpertTables {
        let entry = |(expert, levels): (u64, &u32)| {
            let matrices = [0, 1, 2].map(|matrix| 1000 * (expert + 1) + matrix);
            ExpertEntry { matrices, levels: *levels, padding: 0 }
        };
        let entries: Vec<_> = (0..).zip(&self.held).map(entry).collect();
        let uses = self.ids.len();
        let sizes = [80 * uses, 40 * uses, 8 * uses, 8 * uses, 8 * uses.div_ceil(2), 8];
        let bytes: usize = sizes.iter().sum();
        let made = outcome(&vec![0u64; bytes / 8], |start| {
            let at = |part: usize| start + sizes[..part].iter().sum::<usize>() as u64;
            let params = ExpertBlocksParams {
                entries: address(&entries),
                least: self.least.as_ref().map_or(0, |least| address(least)),
                biases: BIASES,
                ids: address(&self.ids),
                weights: address(&self.weights),
                levels: address(&self.levels),
                inner: at(0),
                outer: at(1),
                inner_pairs: at(2),
                outer_pairs: at(3),
                notes: at(4),
                halt: at(5),
                uses: uses as u32,
                per_token: (uses / self.levels.len()) as u32,
                experts: EXPERTS as u32,
                inner_rows: INNER_ROWS,
                out_rows: OUT_ROWS,
                call: CALL,
                together: self.together,
                padding: 0,
            };
            (params.launch(), params)
        });
        let mut rest: &[u8] = bytemuck::cast_slice(&made);
        let [inner, outer, first, second, notes, halt] = sizes.map(|size| {
            let (part, after) = rest.split_at(size);
            rest = after;
            part
        });
        ExpertTables {
            inner: bytemuck::cast_slice(inner).to_vec(),
            outer: bytemuck::cast_slice(outer).to_vec(),
            pairs: [first, second].map(|pairs| bytemuck::cast_slice(pairs).to_vec()),
            notes: bytemuck::cast_slice::<_, u32>(notes)[..uses].to_vec(),
            halt: bytemuck::cast_slice(halt)[0],
        }
    }

    /// Checks that each use is in one block of each matrix of its expert. Uses of the same level share
    /// blocks.
    fn check(&self, levels: &[u32]) -> ExpertTables {
        let found = self.run();
        let per_token = (self.ids.len() / self.levels.len()) as u32;
        let mut alike: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for (used, (id, level)) in (0..).zip(self.ids.iter().zip(levels)) {
            alike.entry((*id, *level)).or_default().push(used);
        }
        let expected: Vec<_> = alike
            .iter()
            .flat_map(|(key, uses)| {
                uses.chunks(self.together as usize).map(move |uses| (*key, uses.to_vec()))
            })
            .collect();
        for matrix in 0..3u32 {
            let blocks = match matrix {
                2 => found.outer.as_slice(),
                _ => &found.inner,
            };
            let every = if matrix == 2 { 1 } else { 2 };
            let mut seen = Vec::new();
            for block in blocks.iter().skip(matrix as usize % 2).step_by(every) {
                let (rows, col) = match matrix {
                    2 => (OUT_ROWS, 0),
                    _ => (INNER_ROWS, matrix * INNER_ROWS),
                };
                if block.pairs == 0 {
                    assert_eq!(block.end_row, 0);
                    continue;
                }
                let expert = (block.matrix / 1000 - 1) as u32;
                assert_eq!(block.matrix % 1000, u64::from(matrix));
                assert_eq!((block.first_row, block.end_row, block.out_col), (0, rows, col));
                let biases = matrix * EXPERTS as u32 * INNER_ROWS + expert * rows;
                assert_eq!(block.bias, BIASES + 4 * u64::from(biases));
                let pairs = &found.pairs[usize::from(matrix == 2)][block.first_pair as usize..];
                let pairs = &pairs[..block.pairs as usize];
                for pair in pairs {
                    let row = pair.out_row;
                    assert_eq!(pair.x_row, if matrix == 2 { row } else { row / per_token });
                }
                let uses: Vec<u32> = pairs.iter().map(|pair| pair.out_row).collect();
                seen.push(((expert, block.level), uses));
            }
            seen.sort();
            assert_eq!(seen, expected, "matrix {matrix}");
        }
        found
    }
}

#[test]
pub fn uses_of_one_expert_at_one_level_are_one_block() {
    let rows: [&[u32]; 4] = [&[0, 3], &[3, 5], &[1, 3], &[3, 4]];
    let found = Case::new(&rows, &[2, 4, 2, 2]).check(&[2, 2, 4, 4, 2, 2, 2, 2]);
    assert_eq!(found.notes, rows.concat());
    assert_eq!(found.halt, 0);
}

#[test]
pub fn a_level_that_is_not_there_halts_and_is_noted() {
    for (held, halts) in [([5, 0, 5, 3, 0, 5], false), ([5, 0, 5, 2, 0, 5], true)] {
        let mut case = Case::new(&[&[0, 3], &[3, 5]], &[2, 0]);
        case.held = held;
        let found = case.check(&[2, 2, 0, 0]);
        assert_eq!(found.notes, case.ids);
        assert_eq!(found.halt, if halts { CALL } else { 0 });
    }
}

#[test]
pub fn levels_go_by_weight() {
    let mut case = Case::new(&[&[0, 3], &[2, 3], &[3, 5]], &[0, 0, 0]);
    case.weights = vec![0.4, -0.2, f32::NAN, 0.1, 0.09, 3.0];
    let bits = |least: [f32; 3]| [least[0].to_bits(), least[1].to_bits(), least[2].to_bits()];
    let of_all = bits([0.1, 0.2, 0.4]).into_iter().chain([u32::MAX]);
    case.least = Some(of_all.collect::<Vec<u32>>().repeat(EXPERTS));
    let levels = [3, 2, 0, 1, 0, 3];
    let found = case.check(&levels);
    let noted: Vec<u32> =
        case.ids.iter().zip(levels).map(|(id, level)| id | (level + 1) << 16).collect();
    assert_eq!(found.notes, noted);
    assert_eq!(found.halt, 0);
    case.held = [5, 5, 5, 2, 5, 5];
    assert_eq!(case.check(&levels).halt, CALL);
}

#[test]
pub fn more_uses_than_threads() {
    let rows: Vec<[u32; 2]> = (0..200u32).map(|row| [row % 3, 3 + row % 3]).collect();
    let rows: Vec<&[u32]> = rows.iter().map(|row| row.as_slice()).collect();
    let levels: Vec<u32> = (0..200).map(|row| row / 7 % 5).collect();
    let of_uses: Vec<u32> = levels.iter().flat_map(|level| [*level; 2]).collect();
    let mut case = Case::new(&rows, &levels);
    case.together = 8;
    case.check(&of_uses);
}
