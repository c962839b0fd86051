//! Products of one matrix, once, for counting their instructions.
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='instructions::products*' \
//!     target/release/examples/instructions avx2 Q4_K 1
//! ```
//!
//! The arguments are an instruction set, a file type or a level (`L4`, with P3 and P4 apart `L4s`), and the
//! number of rows of activations. Divided by 768 x 2048 / 32 and by the rows, the collected instructions are
//! those for 32 weights and one row.

use std::error::Error;
use std::hint::black_box;

use nestling_benches::{FileType, RandomMatrix, RandomScaled};
use nestling_cpu::kernels::Kernels;
use nestling_cpu::nested::{CodecTables, NestedWeights};
use nestling_cpu::rows::{PackedRows, QuantizedRows, RowList};
use nestling_cpu::scaled::{ScaledTables, ScaledWeights};
use nestling_formats::Level;

/// Outputs and inputs of the matrix.
const SHAPE: [usize; 2] = [768, 2048];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [set, kind, rows] = &*arguments else {
        return Err("usage: instructions SET KIND ROWS".into());
    };
    let (kernels, count) = (Kernels::of(set.parse()?)?, rows.parse()?);
    let mut x = QuantizedRows::default();
    x.resize(count, SHAPE[1]);
    for row in 0..count {
        let number = |i: usize| ((i * 7919 + row) % 1009) as f32 / 500.0 - 1.0;
        let values: Vec<f32> = (0..SHAPE[1]).map(number).collect();
        kernels.quantize(&values, x.row_mut(row));
    }
    let order: Vec<u32> = (0..).take(count).collect();
    let (mut rows, mut out) = (RowList::new(&x, &order), vec![[0.0; 16]; count]);
    let packed = packed(&x, &order);
    if count >= kernels.packs_from() {
        rows = rows.with_packed(&packed, 0);
    }
    if let Some(file_type) = FileType::ALL.iter().find(|file_type| file_type.name == kind) {
        let matrix = RandomScaled::new(SHAPE[0], SHAPE[1], *file_type)?;
        let (view, tables) = (matrix.view()?, ScaledTables::new(&matrix.codec)?);
        let weights = ScaledWeights::new(&view, matrix.level(), &tables)?;
        products(weights.tiles(), |tile| kernels.scaled_tile(&weights, tile, rows, &mut out));
    } else {
        let level = Level::ALL.into_iter().find(|level| kind.contains(&level.bits().to_string()));
        let matrix = RandomMatrix::new(SHAPE[0], SHAPE[1], Level::L8)?;
        let (view, tables) = (matrix.view(!kind.ends_with('s'))?, CodecTables::new(&matrix.codec));
        let weights = NestedWeights::new(&view, level.ok_or("no such level")?, &tables)?;
        products(weights.tiles(), |tile| kernels.nested_tile(&weights, tile, rows, &mut out));
    }
    black_box(&out);
    Ok(())
}

/// Packs rows, as a product with many of them does once for all tiles.
fn packed(x: &QuantizedRows, order: &[u32]) -> PackedRows {
    let mut packed = PackedRows::default();
    packed.clear(x.groups());
    packed.push(order);
    let (cells, blocks) = packed.cells_mut();
    for (block, cells) in cells.chunks_mut(x.groups()).enumerate() {
        blocks.fill(block, x, cells);
    }
    packed
}

/// Computes all tiles. Never inlined, so that callgrind can be told to collect within it.
#[inline(never)]
fn products(tiles: usize, product: impl FnMut(usize)) {
    (0..tiles).for_each(product);
}
