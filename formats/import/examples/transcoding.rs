//! Transcoding of blocks of a GGUF file into planes, for counting its instructions and timing it.
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='transcoding::transcode*' \
//!     target/release/examples/transcoding Q4_K 1
//! ```
//!
//! The arguments are a block type and a number of passes. Each pass transcodes a matrix of 768 x 2048 weights as
//! a read of an expert does, a tile at a time. Divided by 768 x 2048 / 32 and by the passes, the collected
//! instructions are those for 32 weights. The rates that are printed count the bytes of the blocks.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use nestling_formats::Plane;
use nestling_formats::nested::{
    Layout, PlaneForm, ScaledPlanes, ScaledRows, TILE_ROWS, merged_bytes,
};
use nestling_import::gguf::{BlockType, ScaledBlocks, ScaledRun};

/// Outputs and inputs of the matrix.
const SHAPE: [usize; 2] = [768, 2048];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, passes] = &*arguments else { return Err("usage: transcoding KIND PASSES".into()) };
    let kind = BlockType::ALL.into_iter().find(|known| known.name() == kind);
    let (kind, passes) = (kind.ok_or("no such block type")?, passes.parse::<u32>()?);
    let [rows, cols] = SHAPE;
    let bytes = rows * cols / kind.elements() * kind.bytes();
    // Small bytes, so that no scale is infinite.
    let blocks: Vec<u8> = (0..bytes).map(|at| (at * 7919 % 1009 % 113) as u8).collect();
    let form = ScaledBlocks::whole(kind).form();
    let has_merged = form.plane_bits(Plane::P4) > 0;
    let is_apart =
        |plane: &Plane| form.plane_bits(*plane) > 0 && !(has_merged && is_in_merged(*plane));
    let mut outputs = Vec::new();
    for plane in Plane::ALL.into_iter().filter(is_apart) {
        let bytes = PlaneForm::Scaled(form).plane_bytes(Layout::Tile16, rows, cols, plane);
        outputs.push((plane, vec![0; bytes.ok_or("a plane without a size")?]));
    }
    let mut merged = vec![0; merged_bytes(Layout::Tile16, rows, cols).ok_or("no size")?];
    let mut tile = ScaledRows::default();
    let (mut blocks_time, mut planes_time) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..passes {
        let mut planes = ScaledPlanes::new(&form, Layout::Tile16, rows, cols)?;
        for (plane, out) in &mut outputs {
            planes.add(*plane, out)?;
        }
        if has_merged {
            planes.add_merged(&mut merged)?;
        }
        for (at, blocks) in blocks.chunks(TILE_ROWS * bytes / rows).enumerate() {
            let start = Instant::now();
            transcode_blocks(kind, blocks, &mut tile)?;
            let middle = Instant::now();
            transcode_planes(&mut planes, at * TILE_ROWS, kind, &tile)?;
            blocks_time += middle - start;
            planes_time += middle.elapsed();
        }
    }
    black_box((&outputs, &merged));
    let rate = |time: Duration| f64::from(passes) * bytes as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{}: blocks {:.2} GB/s, planes {:.2} GB/s, both {:.2} GB/s",
        kind.name(),
        rate(blocks_time),
        rate(planes_time),
        rate(blocks_time + planes_time)
    );
    Ok(())
}

fn is_in_merged(plane: Plane) -> bool {
    matches!(plane, Plane::P3 | Plane::P4)
}

/// Transcodes the blocks of a tile. Never inlined, so that callgrind can be told to collect within it.
#[inline(never)]
fn transcode_blocks(
    kind: BlockType,
    blocks: &[u8],
    tile: &mut ScaledRows,
) -> Result<(), Box<dyn Error>> {
    let whole = ScaledBlocks::whole(kind);
    let moved = if kind.has_pairs() {
        whole.resize_pairs(tile, TILE_ROWS, SHAPE[1])?;
        kind.transcode_pairs(blocks, &mut ScaledRun::from_row(tile, 0))
    } else {
        whole.resize(tile, TILE_ROWS, SHAPE[1])?;
        kind.transcode(blocks, &mut ScaledRun::from_row(tile, 0))
    };
    Ok(moved.map_err(|wrong| format!("{wrong:?}"))?)
}

/// Divides a tile into planes. Never inlined, as [`transcode_blocks`].
#[inline(never)]
fn transcode_planes(
    planes: &mut ScaledPlanes<'_>,
    first: usize,
    kind: BlockType,
    tile: &ScaledRows,
) -> Result<(), Box<dyn Error>> {
    match kind.has_pairs() {
        true => planes.write_pairs(first, tile)?,
        false => planes.write(first, tile)?,
    }
    Ok(())
}
