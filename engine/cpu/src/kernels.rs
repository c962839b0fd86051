//! The operations of [`super::math`], [`super::nested`] and [`super::scaled`], compiled for each instruction
//! set and selected once at run time.
#![expect(unsafe_code, reason = "calls code for instruction sets that were detected")]

mod choice;
#[cfg(test)]
mod tests;

use half::f16;
use nestling_import::{Activation, GateFunction, RouterConfig};

use super::attention::{self, AttentionRows, KvBlock};
use super::columns::{self, ColumnsMut};
use super::delta_net::{self, FactorInputs, StateHead};
use super::math::{self, OUTER_TILE, RouterScores};
use super::nested::{self, NestedWeights, TileValues};
#[cfg(target_arch = "x86_64")]
use super::planes::avx2::panel;
use super::rows::{QuantizedGroup, RowList};
use super::scaled::{self, ScaledWeights};
#[cfg(target_arch = "x86_64")]
use super::vector::x86::{Avx2, Avx512};
use super::vector::{self, Portable};
pub use choice::InstructionSet;
use nestling_math::float_tile::float_tile;
pub use nestling_math::float_tile::{FloatInputs, FloatWeights};

type NestedTile = unsafe fn(&NestedWeights, usize, RowList, &mut [TileValues]);

type ScaledTile = unsafe fn(&ScaledWeights, usize, RowList, &mut [TileValues]);

type FloatTile = unsafe fn(FloatWeights, usize, FloatInputs, &mut [TileValues]);

type PassRows = unsafe fn(StateHead, Option<&[f32]>, &mut [f32], &mut [f32]);

type WriteTile = unsafe fn(&mut ColumnsMut<'_, f32>, usize, &[u32], &[TileValues]);

type OuterProducts =
    unsafe fn(&[[f32; OUTER_TILE]], &[[f32; OUTER_TILE]], &mut [[f32; OUTER_TILE]; OUTER_TILE]);

/// The kernels of one instruction set. All sets give the same bits.
pub struct Kernels {
    name: &'static str,
    nested_tile: NestedTile,
    scaled_tile: ScaledTile,
    packs_from: usize,
    quantize: unsafe fn(&[f32], &mut [QuantizedGroup]),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    rms_norm_in_place: unsafe fn(&mut [f32], &[f32], f32),
    rms_norm_add: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    route: unsafe fn(&RouterConfig, RouterScores, &mut [u32], &mut [f32]),
    gated: unsafe fn(Activation, &mut [f32], &[f32]),
    scale: unsafe fn(&mut [f32], f32),
    softcap: unsafe fn(&mut [f32], f32),
    gate: unsafe fn(GateFunction, &mut [f32], &[f32]),
    convolve: delta_net::Convolve,
    state_factors: delta_net::Factors,
    pass_rows: PassRows,
    hadamard: unsafe fn(&mut [f32]),
    add_scaled: unsafe fn(&mut [f32], f32, &[f32]),
    add: unsafe fn(&mut [f32], &[f32]),
    float_tile: FloatTile,
    attend_page: unsafe fn(KvBlock, Option<KvBlock>, usize, f32, &mut AttentionRows),
    narrow: unsafe fn(&[f32], &mut [f16]),
    write_tile: WriteTile,
    outer_products: OuterProducts,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.name).finish()
    }
}

#[inline(always)]
fn quantize(x: &[f32], out: &mut [QuantizedGroup]) {
    for (x, cell) in x.chunks(cell_length()).zip(out) {
        cell.scale = math::quantize_group(x, &mut cell.values);
        let sum: i32 = cell.values.iter().map(|value| i32::from(*value)).sum();
        cell.correction = -128 * sum;
    }
}

const fn cell_length() -> usize {
    nestling_formats::nested::GROUP
}

/// Defines a module with all float operations compiled for a list of features, and its table.
macro_rules! kernels_for {
    ($module:ident, $name:literal, $nested:path, $scaled:path, $packs:expr, $vector:ty, $floats:expr $(, $features:literal)?) => {
        mod $module {
            use super::*;

            $(#[target_feature(enable = $features)])?
            unsafe fn quantize(x: &[f32], out: &mut [QuantizedGroup]) {
                super::quantize(x, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
                math::rms_norm(x, weight, epsilon, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm_in_place(x: &mut [f32], weight: &[f32], epsilon: f32) {
                math::rms_norm_in_place(x, weight, epsilon);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm_add(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
                math::rms_norm_add(x, weight, epsilon, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn route(
                rule: &RouterConfig,
                scores: RouterScores,
                ids: &mut [u32],
                weights: &mut [f32],
            ) {
                math::route(rule, scores, ids, weights);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn gated(activation: Activation, gate: &mut [f32], up: &[f32]) {
                math::gated(activation, gate, up);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn scale(x: &mut [f32], factor: f32) {
                math::scale(x, factor);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn softcap(x: &mut [f32], cap: f32) {
                math::softcap(x, cap);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn gate(function: GateFunction, x: &mut [f32], gate: &[f32]) {
                math::gate(function, x, gate);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn convolve(
                taps: &[&[f32]],
                weights: &[f32],
                gate: Option<&[f32]>,
                out: &mut [f32],
            ) {
                delta_net::convolve(taps, weights, gate, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn state_factors(inputs: FactorInputs, out: &mut [[f32; 2]]) {
                delta_net::state_factors(inputs, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn pass_rows(
                head: StateHead,
                from: Option<&[f32]>,
                state: &mut [f32],
                out: &mut [f32],
            ) {
                delta_net::pass_rows::<$vector>(head, from, state, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn hadamard(x: &mut [f32]) {
                math::hadamard(x);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn add_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
                math::add_scaled(out, factor, x);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn add(out: &mut [f32], x: &[f32]) {
                math::add(out, x);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn float_tile(
                weights: FloatWeights,
                stride: usize,
                x: FloatInputs,
                out: &mut [TileValues],
            ) {
                const BLOCK: [usize; 2] = $floats;
                super::float_tile::<$vector, { BLOCK[0] }, { BLOCK[1] }>(weights, stride, x, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn attend_page(
                kv: KvBlock,
                next: Option<KvBlock>,
                first: usize,
                scale: f32,
                rows: &mut AttentionRows,
            ) {
                attention::attend_page::<$vector>(kv, next, first, scale, rows);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn narrow(from: &[f32], to: &mut [f16]) {
                vector::narrow::<$vector>(from, to);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn write_tile(
                block: &mut ColumnsMut<'_, f32>,
                col: usize,
                rows: &[u32],
                values: &[TileValues],
            ) {
                columns::write_tile::<$vector>(block, col, rows, values);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn outer_products(
                a: &[[f32; OUTER_TILE]],
                b: &[[f32; OUTER_TILE]],
                sums: &mut [[f32; OUTER_TILE]; OUTER_TILE],
            ) {
                math::outer_products(a, b, sums);
            }

            pub static KERNELS: Kernels = Kernels {
                name: $name,
                nested_tile: $nested,
                scaled_tile: $scaled,
                packs_from: $packs,
                quantize,
                rms_norm,
                rms_norm_in_place,
                rms_norm_add,
                route,
                gated,
                scale,
                softcap,
                gate,
                convolve,
                state_factors,
                pass_rows,
                hadamard,
                add_scaled,
                add,
                float_tile,
                attend_page,
                narrow,
                write_tile,
                outer_products,
            };
        }
    };
}

unsafe fn portable_tile(
    weights: &NestedWeights,
    tile: usize,
    rows: RowList,
    out: &mut [TileValues],
) {
    nested::portable(weights, tile, rows.source(), rows.rows(), out);
}

unsafe fn portable_scaled_tile(
    weights: &ScaledWeights,
    tile: usize,
    rows: RowList,
    out: &mut [TileValues],
) {
    scaled::portable(weights, tile, rows.source(), rows.rows(), out);
}

kernels_for!(
    portable,
    "portable",
    portable_tile,
    portable_scaled_tile,
    usize::MAX,
    Portable,
    [4, 1]
);
#[cfg(target_arch = "x86_64")]
kernels_for!(
    avx2,
    "AVX2",
    nested::avx2::plain::tile,
    scaled::avx2::plain::tile,
    panel::PACKS_FROM,
    Avx2,
    [2, 3],
    "avx2,fma,f16c"
);
/// Shares the float operations of AVX2: VNNI multiplies integers alone.
#[cfg(target_arch = "x86_64")]
static AVX_VNNI: Kernels = Kernels {
    name: "AVX-VNNI",
    nested_tile: nested::avx2::vnni::tile,
    scaled_tile: scaled::avx2::vnni::tile,
    ..avx2::KERNELS
};
#[cfg(target_arch = "x86_64")]
kernels_for!(
    avx512,
    "AVX-512 VNNI",
    nested::avx512::tile,
    scaled::avx512::tile,
    nested::avx512::PACKS_FROM,
    Avx512,
    [4, 6],
    "avx512f,avx512bw,avx512vl,avx512dq,fma"
);
#[cfg(target_arch = "aarch64")]
kernels_for!(
    neon,
    "NEON",
    nested::neon::plain::tile,
    scaled::neon::plain::tile,
    usize::MAX,
    Portable,
    [4, 1],
    "neon"
);
/// Shares the float operations of NEON: these dot products are of integers.
#[cfg(target_arch = "aarch64")]
static NEON_DOT: Kernels = Kernels {
    name: "NEON with dot products",
    nested_tile: nested::neon::dotprod::tile,
    scaled_tile: scaled::neon::dotprod::tile,
    ..neon::KERNELS
};

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
kernels_for!(
    simd128,
    "SIMD128",
    nested::simd128::tile,
    portable_scaled_tile,
    usize::MAX,
    vector::simd128::Simd128,
    [4, 1]
);

impl Kernels {
    /// Returns the display name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of rows from which packing activations once for all tiles of a matrix is faster.
    pub fn packs_from(&self) -> usize {
        self.packs_from
    }

    /// Multiplies the 16 rows of one tile with rows of activations. `out[i]` gets the product with row `i` of
    /// the list. Values for rows beyond the matrix are unspecified.
    ///
    /// # Panics
    /// Panics if the tile is out of range or sizes differ.
    pub fn nested_tile(
        &self,
        weights: &NestedWeights,
        tile: usize,
        rows: RowList,
        out: &mut [TileValues],
    ) {
        assert!(nested::fits(weights, tile, rows, out), "tile {tile} of {} rows", out.len());
        // SAFETY: the machine has the features, as for all calls below: a set is only returned by
        // `available`, and the planes' lengths were checked by `NestedView::new`.
        unsafe { (self.nested_tile)(weights, tile, rows, out) }
    }

    /// Multiplies the 16 rows of one tile of scaled integers, like [`Self::nested_tile`].
    ///
    /// # Panics
    /// Panics if the tile is out of range or sizes differ.
    pub fn scaled_tile(
        &self,
        weights: &ScaledWeights,
        tile: usize,
        rows: RowList,
        out: &mut [TileValues],
    ) {
        assert!(scaled::fits(weights, tile, rows, out), "tile {tile} of {} rows", out.len());
        // SAFETY: see `nested_tile`.
        unsafe { (self.scaled_tile)(weights, tile, rows, out) }
    }

    /// Quantizes one row in groups of 32 to int8, rounding half to even.
    pub fn quantize(&self, x: &[f32], out: &mut [QuantizedGroup]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.quantize)(x, out) }
    }

    /// Computes [`math::rms_norm`].
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.rms_norm)(x, weight, epsilon, out) }
    }

    /// Computes [`math::rms_norm_in_place`].
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: &[f32], epsilon: f32) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.rms_norm_in_place)(x, weight, epsilon) }
    }

    /// Computes [`math::rms_norm_add`].
    pub fn rms_norm_add(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.rms_norm_add)(x, weight, epsilon, out) }
    }

    /// Computes [`math::route`].
    pub fn route(
        &self,
        rule: &RouterConfig,
        scores: RouterScores,
        ids: &mut [u32],
        weights: &mut [f32],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.route)(rule, scores, ids, weights) }
    }

    /// Computes [`math::gated`].
    pub fn gated(&self, activation: Activation, gate: &mut [f32], up: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.gated)(activation, gate, up) }
    }

    /// Computes [`math::scale`].
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.scale)(x, factor) }
    }

    /// Computes [`math::softcap`].
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.softcap)(x, cap) }
    }

    /// Computes [`math::gate`].
    pub fn gate(&self, function: GateFunction, x: &mut [f32], gate: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.gate)(function, x, gate) }
    }

    /// Computes [`delta_net::convolve`].
    pub fn convolve(&self, t: &[&[f32]], weights: &[f32], gate: Option<&[f32]>, out: &mut [f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.convolve)(t, weights, gate, out) }
    }

    /// Computes decay, and beta or the time step, of each head of one row.
    ///
    /// # Panics
    /// Panics if a slice is too short.
    pub fn state_factors(&self, inputs: FactorInputs, out: &mut [[f32; 2]]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.state_factors)(inputs, out) }
    }

    /// Applies the rows of one head to its state, `[key_head_dim, value_head_dim]`, in order, as defined in
    /// [`delta_net`]. The first row starts from `from` if given, or else from the contents of `state`.
    ///
    /// # Panics
    /// Panics if a slice is too short.
    pub fn pass_rows(
        &self,
        head: StateHead,
        from: Option<&[f32]>,
        state: &mut [f32],
        out: &mut [f32],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.pass_rows)(head, from, state, out) }
    }

    /// Computes [`math::hadamard`].
    pub fn hadamard(&self, x: &mut [f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.hadamard)(x) }
    }

    /// Computes [`math::add_scaled`].
    pub fn add_scaled(&self, out: &mut [f32], factor: f32, x: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.add_scaled)(out, factor, x) }
    }

    /// Computes [`math::add`].
    pub fn add(&self, out: &mut [f32], x: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.add)(out, x) }
    }

    /// Computes dot products of up to 16 rows of float weights, `stride` apart, with rows of activations:
    /// `out[t][row]`, each as by [`math::dot`]. Values for rows beyond the weights are unspecified.
    ///
    /// # Panics
    /// Panics if weights, rows or outputs are too short.
    pub fn float_tile(
        &self,
        weights: FloatWeights,
        stride: usize,
        x: FloatInputs,
        out: &mut [TileValues],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.float_tile)(weights, stride, x, out) }
    }

    /// Adds the page whose first position is `first` to the accumulators of all queries, as defined in
    /// [`attention`]. Queries that see none of its positions are unchanged. The keys of `next`, of the same
    /// element type, are fetched meanwhile.
    ///
    /// # Panics
    /// Panics if the block and the queries differ in head size.
    pub fn attend_page(
        &self,
        kv: KvBlock,
        next: Option<KvBlock>,
        first: usize,
        scale: f32,
        rows: &mut AttentionRows,
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.attend_page)(kv, next, first, scale, rows) }
    }

    /// Rounds floats to half precision, half to even. Both slices have the same length.
    pub fn narrow(&self, from: &[f32], to: &mut [f16]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.narrow)(from, to) }
    }

    /// Writes a tile's values, one array for each of `rows`, to sixteen columns of a block from `col` on with
    /// non-temporal stores. A [`columns::fence`] is required before another thread reads them.
    ///
    /// # Panics
    /// Panics if rows or columns are beyond the block.
    pub(super) fn write_tile(
        &self,
        block: &mut ColumnsMut<'_, f32>,
        col: usize,
        rows: &[u32],
        values: &[TileValues],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.write_tile)(block, col, rows, values) }
    }

    /// Computes [`math::outer_products`].
    pub fn outer_products(
        &self,
        a: &[[f32; OUTER_TILE]],
        b: &[[f32; OUTER_TILE]],
        sums: &mut [[f32; OUTER_TILE]; OUTER_TILE],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.outer_products)(a, b, sums) }
    }
}
