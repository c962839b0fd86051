//! First product of a feed-forward part: gate and up of one block, or up alone, joined and quantized.

use nestling_formats::nested::{GROUP, TILE_ROWS};
use nestling_import::Activation;

use super::products::{FEW_ROWS, ROW_BLOCK};
use super::tiles::Tiles;
use crate::columns::ColumnsMut;
use crate::nested::TileValues;
use crate::rows::{QuantizedGroup, RowList};
use crate::team::Team;

/// Number of groups of gate that are computed before the same groups of up, for one row and for few rows.
/// Matrices are read from memory faster in long runs (docs/perf/026, "Runs of gate and up").
pub(super) const RUN: usize = 32;
const FEW_ROWS_RUN: usize = 4;

/// First product of a feed-forward part. Its rows are consecutive in the inner activations.
pub(crate) struct Inner<'a> {
    pub activation: Activation,
    /// Gate, if the activation has one.
    pub gate: Option<Tiles<'a>>,
    pub up: Tiles<'a>,
    /// Biases of gate and up.
    pub biases: [Option<&'a [f32]>; 2],
    pub rows: &'a [u32],
    /// Row of the inner activations that receives the first row.
    pub start: usize,
    pub width: usize,
    /// True if down expects rotated inputs.
    pub rotated: bool,
}

impl Inner<'_> {
    pub fn fill(&self, team: &Team, rows: RowList, block: &mut ColumnsMut<'_, QuantizedGroup>) {
        match rows.rows().len() {
            1 => self.fill_by::<1, RUN>(team, rows, block),
            2..=FEW_ROWS => self.fill_by::<FEW_ROWS, FEW_ROWS_RUN>(team, rows, block),
            _ => self.fill_by::<ROW_BLOCK, 1>(team, rows, block),
        }
    }

    /// Computes the groups of one block, `N` rows at a time, with `G` groups of gate and then the same groups
    /// of up.
    fn fill_by<const N: usize, const G: usize>(
        &self,
        team: &Team,
        rows: RowList,
        block: &mut ColumnsMut<'_, QuantizedGroup>,
    ) {
        let range = block.range();
        let (mut gate, mut up) = ([[[0.0; GROUP]; N]; G], [[[0.0; GROUP]; N]; G]);
        let mut values = [[0.0; TILE_ROWS]; N];
        for first in range.clone().step_by(G) {
            let groups = first..range.end.min(first + G);
            for (index, rows) in rows.chunks(N).enumerate() {
                let count = rows.rows().len();
                let values = &mut values[..count];
                for (tiles, out) in [(self.gate.as_ref(), &mut gate), (Some(&self.up), &mut up)] {
                    let Some(tiles) = tiles else { continue };
                    for (group, out) in groups.clone().zip(&mut *out) {
                        multiply(team, tiles, group, self.live(group), rows, values, out);
                    }
                }
                for (group, (gate, up)) in groups.clone().zip(gate.iter_mut().zip(&mut up)) {
                    let pairs = gate.iter_mut().zip(up).take(count);
                    for (row, (gate, up)) in pairs.enumerate() {
                        let row = block.row(self.start + index * N + row);
                        let cells = &mut row[group - range.start..][..1];
                        self.finish(team, group, gate, up, cells);
                    }
                }
            }
        }
    }

    /// Returns the number of outputs in a group of 32; the last group may have fewer.
    fn live(&self, group: usize) -> usize {
        GROUP.min(self.width - group * GROUP)
    }

    /// Converts the products of one group of one row to quantized activations.
    fn finish(
        &self,
        team: &Team,
        group: usize,
        gate: &mut [f32; GROUP],
        up: &mut [f32; GROUP],
        cells: &mut [QuantizedGroup],
    ) {
        let live = self.live(group);
        let columns = group * GROUP..group * GROUP + live;
        for (values, bias) in [(&mut *gate, self.biases[0]), (up, self.biases[1])] {
            let bias = bias.map_or(&[][..], |bias| &bias[columns.clone()]);
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        if self.gate.is_none() {
            *gate = *up;
        }
        team.kernels.gated(self.activation, &mut gate[..live], &up[..live]);
        if self.rotated {
            gate[live..].fill(0.0);
            team.kernels.hadamard(gate);
        }
        team.kernels.quantize(&gate[..live], cells);
    }
}

/// Computes the one or two tiles of a group of 32 outputs. `values` is a buffer for one tile.
fn multiply(
    team: &Team,
    tiles: &Tiles,
    group: usize,
    live: usize,
    rows: RowList,
    values: &mut [TileValues],
    out: &mut [[f32; GROUP]],
) {
    for half in 0..live.div_ceil(TILE_ROWS) {
        let tile = group * (GROUP / TILE_ROWS) + half;
        tiles.multiply(team, tile, rows, values);
        for (out, values) in out.iter_mut().zip(&*values) {
            out.as_chunks_mut::<TILE_ROWS>().0[half] = *values;
        }
    }
}
