//! The operations of [`super::math`] and [`super::nested`], compiled for each instruction set and
//! chosen once at run time.
#![expect(unsafe_code, reason = "calls code for instruction sets that were detected")]

use half::{bf16, f16};

use super::attention::{self, AttentionRows, KvBlock};
use super::math::{self, Element, OUTER_TILE};
use super::nested::{self, NestedWeights, TileValues};
use super::rows::{QuantizedGroup, QuantizedRows};
#[cfg(target_arch = "x86_64")]
use super::vector::x86::{Avx2, Avx512};
use super::vector::{self, Portable};

type NestedTile = unsafe fn(&NestedWeights, usize, &QuantizedRows, &[u32], &mut [TileValues]);

type FloatRows = unsafe fn((FloatWeights, usize), FloatInputs, &mut [[f32; FLOAT_ROWS]]);

/// Rows of float weights that lie a stride apart.
#[derive(Clone, Copy, Debug)]
pub enum FloatWeights<'a> {
    /// 32 bits.
    F32(&'a [f32]),
    /// 16 bits.
    F16(&'a [f16]),
    /// The upper half of 32 bits.
    Bf16(&'a [bf16]),
}

impl FloatWeights<'_> {
    /// Those after so many elements.
    pub fn skip(self, elements: usize) -> Self {
        match self {
            Self::F32(weights) => Self::F32(&weights[elements..]),
            Self::F16(weights) => Self::F16(&weights[elements..]),
            Self::Bf16(weights) => Self::Bf16(&weights[elements..]),
        }
    }
}

/// Rows of activations.
#[derive(Clone, Copy, Debug)]
pub struct FloatInputs<'a> {
    /// `[all rows, cols]`.
    pub values: &'a [f32],
    /// Columns.
    pub cols: usize,
    /// The rows that are meant.
    pub rows: &'a [u32],
}

impl<'a> FloatInputs<'a> {
    #[inline(always)]
    fn row(&self, at: usize) -> &'a [f32] {
        &self.values[self.rows[at] as usize * self.cols..][..self.cols]
    }
}

type OuterProducts =
    unsafe fn(&[[f32; OUTER_TILE]], &[[f32; OUTER_TILE]], &mut [[f32; OUTER_TILE]; OUTER_TILE]);

/// The kernels of one instruction set. Every set gives the same bits.
pub struct Kernels {
    name: &'static str,
    nested_tile: NestedTile,
    quantize: unsafe fn(&[f32], &mut [QuantizedGroup]),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    rms_norm_in_place: unsafe fn(&mut [f32], &[f32], f32),
    route: unsafe fn(&mut [f32], bool, &mut [u32], &mut [f32]),
    swiglu: unsafe fn(&mut [f32], &[f32]),
    geglu: unsafe fn(&mut [f32], &[f32]),
    softcap: unsafe fn(&mut [f32], f32),
    hadamard: unsafe fn(&mut [f32]),
    add_scaled: unsafe fn(&mut [f32], f32, &[f32]),
    add: unsafe fn(&mut [f32], &[f32]),
    float_rows: FloatRows,
    attend_page: unsafe fn(KvBlock, usize, f32, &mut AttentionRows),
    narrow: unsafe fn(&[f32], &mut [f16]),
    outer_products: OuterProducts,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.name).finish()
    }
}

/// Rows of float weights that are multiplied together.
pub const FLOAT_ROWS: usize = 4;

/// Sums of one row of activations with all rows of weights.
type FloatSums = [[f32; math::LANES]; FLOAT_ROWS];

/// Products of [`FLOAT_ROWS`] rows of weights with rows of activations, `INPUTS` of them at a time
/// where that is 4. Where there are fewer weights, the last row stands for those that are missing.
///
/// Loops over places here and below, not zips and maps: within code for a list of features they are
/// calls, which for short rows take longer than the products.
#[inline(always)]
fn dots<E: Element, const INPUTS: usize>(
    (weights, stride): (&[E], usize),
    x: FloatInputs,
    out: &mut [[f32; FLOAT_ROWS]],
) {
    let cols = x.cols;
    let last = weights.len().saturating_sub(cols).checked_div(stride).unwrap_or(0);
    let mut rows = [weights; FLOAT_ROWS];
    for row in 0..FLOAT_ROWS {
        rows[row] = &weights[row.min(last) * stride..][..cols];
    }
    let mut done = 0;
    while INPUTS == 4 && done + 4 <= x.rows.len() {
        let block =
            four_dots(&rows, [x.row(done), x.row(done + 1), x.row(done + 2), x.row(done + 3)]);
        out[done..done + 4].copy_from_slice(&block);
        done += 4;
    }
    while done < x.rows.len() {
        out[done] = one_dot(&rows, x.row(done));
        done += 1;
    }
}

/// The dot products of four rows of activations: sixteen vectors of sums.
///
/// Each row has a variable of its own: in an array of all, the compiler keeps the sums in memory.
#[inline(always)]
fn four_dots<E: Element>(weights: &[&[E]; FLOAT_ROWS], x: [&[f32]; 4]) -> [[f32; FLOAT_ROWS]; 4] {
    let mut s0: FloatSums = [[0.0; math::LANES]; FLOAT_ROWS];
    let (mut s1, mut s2, mut s3) = (s0, s0, s0);
    for chunk in 0..weights[0].len() / math::LANES {
        let wide = widen(weights, chunk);
        accumulate(&mut s0, &wide, x[0], chunk);
        accumulate(&mut s1, &wide, x[1], chunk);
        accumulate(&mut s2, &wide, x[2], chunk);
        accumulate(&mut s3, &wide, x[3], chunk);
    }
    [
        finish(s0, weights, x[0]),
        finish(s1, weights, x[1]),
        finish(s2, weights, x[2]),
        finish(s3, weights, x[3]),
    ]
}

#[inline(always)]
fn one_dot<E: Element>(weights: &[&[E]; FLOAT_ROWS], x: &[f32]) -> [f32; FLOAT_ROWS] {
    let mut sums = [[0.0; math::LANES]; FLOAT_ROWS];
    for chunk in 0..weights[0].len() / math::LANES {
        accumulate(&mut sums, &widen(weights, chunk), x, chunk);
    }
    finish(sums, weights, x)
}

#[inline(always)]
fn widen<E: Element>(weights: &[&[E]; FLOAT_ROWS], chunk: usize) -> FloatSums {
    let mut wide = [[0.0; math::LANES]; FLOAT_ROWS];
    for row in 0..FLOAT_ROWS {
        let weights = &weights[row].as_chunks::<{ math::LANES }>().0[chunk];
        for lane in 0..math::LANES {
            wide[row][lane] = weights[lane].to_f32();
        }
    }
    wide
}

#[inline(always)]
fn accumulate(sums: &mut FloatSums, weights: &FloatSums, x: &[f32], chunk: usize) {
    let x = &x.as_chunks::<{ math::LANES }>().0[chunk];
    for row in 0..FLOAT_ROWS {
        for lane in 0..math::LANES {
            sums[row][lane] = weights[row][lane].mul_add(x[lane], sums[row][lane]);
        }
    }
}

/// Adds what is left of the rows, then the lanes.
#[inline(always)]
fn finish<E: Element>(
    mut sums: FloatSums,
    weights: &[&[E]; FLOAT_ROWS],
    x: &[f32],
) -> [f32; FLOAT_ROWS] {
    let tail = x.len() % math::LANES;
    let at = x.len() - tail;
    let mut out = [0.0; FLOAT_ROWS];
    for row in 0..FLOAT_ROWS {
        for lane in 0..tail {
            let weight = weights[row][at + lane].to_f32();
            sums[row][lane] = weight.mul_add(x[at + lane], sums[row][lane]);
        }
        out[row] = math::tree_sum(sums[row]);
    }
    out
}

#[inline(always)]
fn float_rows<const INPUTS: usize>(
    (weights, stride): (FloatWeights, usize),
    x: FloatInputs,
    out: &mut [[f32; FLOAT_ROWS]],
) {
    match weights {
        FloatWeights::F32(weights) => dots::<_, INPUTS>((weights, stride), x, out),
        FloatWeights::F16(weights) => dots::<_, INPUTS>((weights, stride), x, out),
        FloatWeights::Bf16(weights) => dots::<_, INPUTS>((weights, stride), x, out),
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

/// Defines a module with every float operation compiled for a list of features, and its table.
macro_rules! kernels_for {
    ($module:ident, $name:literal, $nested:path, $vector:ty, $vectors:literal $(, $features:literal)?) => {
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
            unsafe fn route(
                logits: &mut [f32],
                renormalize: bool,
                ids: &mut [u32],
                weights: &mut [f32],
            ) {
                math::route_softmax(logits, renormalize, ids, weights);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn swiglu(gate: &mut [f32], up: &[f32]) {
                math::swiglu(gate, up);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn geglu(gate: &mut [f32], up: &[f32]) {
                math::geglu(gate, up);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn softcap(x: &mut [f32], cap: f32) {
                math::softcap(x, cap);
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
            unsafe fn float_rows(
                weights: (FloatWeights, usize),
                x: FloatInputs,
                out: &mut [[f32; FLOAT_ROWS]],
            ) {
                super::float_rows::<$vectors>(weights, x, out);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn attend_page(
                kv: KvBlock,
                first: usize,
                scale: f32,
                rows: &mut AttentionRows,
            ) {
                attention::attend_page::<$vector, $vectors>(kv, first, scale, rows);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn narrow(from: &[f32], to: &mut [f16]) {
                vector::narrow::<$vector>(from, to);
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
                quantize,
                rms_norm,
                rms_norm_in_place,
                route,
                swiglu,
                geglu,
                softcap,
                hadamard,
                add_scaled,
                add,
                float_rows,
                attend_page,
                narrow,
                outer_products,
            };
        }
    };
}

unsafe fn portable_tile(
    weights: &NestedWeights,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    nested::portable(weights, tile, x, rows, out);
}

kernels_for!(portable, "portable", portable_tile, Portable, 1);
#[cfg(target_arch = "x86_64")]
kernels_for!(avx2, "AVX2", nested::avx2::plain::tile, Avx2, 1, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels_for!(avx_vnni, "AVX-VNNI", nested::avx2::vnni::tile, Avx2, 1, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels_for!(
    avx512,
    "AVX-512 VNNI",
    nested::avx512::tile,
    Avx512,
    4,
    "avx512f,avx512bw,avx512vl,avx512dq,fma"
);
#[cfg(target_arch = "aarch64")]
kernels_for!(neon, "NEON", nested::neon::plain::tile, Portable, 1, "neon");
#[cfg(target_arch = "aarch64")]
kernels_for!(dotprod, "NEON with dot products", nested::neon::dotprod::tile, Portable, 1, "neon");

impl Kernels {
    /// The kernels that run anywhere.
    pub fn portable() -> &'static Self {
        &portable::KERNELS
    }

    /// Every set that this machine can run, the fastest last.
    pub fn available() -> Vec<&'static Self> {
        std::iter::once(Self::portable()).chain(Self::native()).collect()
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn native() -> Vec<&'static Self> {
        Vec::new()
    }

    #[cfg(target_arch = "aarch64")]
    fn native() -> Vec<&'static Self> {
        let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        let sets = [(true, &neon::KERNELS), (dotprod, &dotprod::KERNELS)];
        sets.into_iter().filter(|(there, _)| *there).map(|(_, set)| set).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn native() -> Vec<&'static Self> {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("gfni");
        let sets = [
            (avx2, &avx2::KERNELS),
            (avx2 && is_x86_feature_detected!("avxvnni"), &avx_vnni::KERNELS),
            (avx2 && avx512, &avx512::KERNELS),
        ];
        sets.into_iter().filter(|(there, _)| *there).map(|(_, set)| set).collect()
    }

    /// The fastest set that this machine can run.
    pub fn detect() -> &'static Self {
        Self::available().last().copied().unwrap_or(Self::portable())
    }

    /// The instruction set, for people.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Multiplies the 16 rows of one tile with rows of activations: `out[i]` gets the product with
    /// row `rows[i]` of `x`. Rows beyond the matrix get a value without meaning.
    ///
    /// # Panics
    /// With a tile that the weights lack, a row that `x` lacks, or sizes that differ.
    pub fn nested_tile(
        &self,
        weights: &NestedWeights,
        tile: usize,
        x: &QuantizedRows,
        rows: &[u32],
        out: &mut [TileValues],
    ) {
        assert!(nested::fits(weights, tile, x, rows, out), "tile {tile} of {} rows", rows.len());
        // SAFETY: the machine has the features, as for all calls below: a set is only handed out
        // by `available`, and the planes' lengths were checked by `NestedView::new`.
        unsafe { (self.nested_tile)(weights, tile, x, rows, out) }
    }

    /// Quantizes one row: groups of 32 to int8, half to even.
    pub fn quantize(&self, x: &[f32], out: &mut [QuantizedGroup]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.quantize)(x, out) }
    }

    /// [`math::rms_norm`].
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.rms_norm)(x, weight, epsilon, out) }
    }

    /// [`math::rms_norm_in_place`].
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: &[f32], epsilon: f32) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.rms_norm_in_place)(x, weight, epsilon) }
    }

    /// [`math::route_softmax`].
    pub fn route(
        &self,
        logits: &mut [f32],
        renormalize: bool,
        ids: &mut [u32],
        weights: &mut [f32],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.route)(logits, renormalize, ids, weights) }
    }

    /// [`math::swiglu`].
    pub fn swiglu(&self, gate: &mut [f32], up: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.swiglu)(gate, up) }
    }

    /// [`math::geglu`].
    pub fn geglu(&self, gate: &mut [f32], up: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.geglu)(gate, up) }
    }

    /// [`math::softcap`].
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.softcap)(x, cap) }
    }

    /// [`math::hadamard`].
    pub fn hadamard(&self, x: &mut [f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.hadamard)(x) }
    }

    /// [`math::add_scaled`].
    pub fn add_scaled(&self, out: &mut [f32], factor: f32, x: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.add_scaled)(out, factor, x) }
    }

    /// [`math::add`].
    pub fn add(&self, out: &mut [f32], x: &[f32]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.add)(out, x) }
    }

    /// Dot products of [`FLOAT_ROWS`] rows of float weights, which lie a stride apart, with rows of
    /// activations: `out[t][row]`, each as [`math::dot`] gives it. Where there are fewer weights,
    /// the last row stands for those that are missing.
    ///
    /// # Panics
    /// With weights or rows that are too short.
    pub fn float_rows(
        &self,
        weights: (FloatWeights, usize),
        x: FloatInputs,
        out: &mut [[f32; FLOAT_ROWS]],
    ) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.float_rows)(weights, x, out) }
    }

    /// Adds the page whose first position is `first` to what every query has gathered; queries
    /// that see nothing of it stay as they are. [`attention`] says what is computed.
    ///
    /// # Panics
    /// With a block of another head size than the queries'.
    pub fn attend_page(&self, kv: KvBlock, first: usize, scale: f32, rows: &mut AttentionRows) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.attend_page)(kv, first, scale, rows) }
    }

    /// Rounds floats to half floats, half to even; both have the same length.
    pub fn narrow(&self, from: &[f32], to: &mut [f16]) {
        // SAFETY: see `nested_tile`.
        unsafe { (self.narrow)(from, to) }
    }

    /// [`math::outer_products`].
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

#[cfg(test)]
mod tests;
