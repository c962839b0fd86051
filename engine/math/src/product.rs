//! The small matrix product that attention uses.
//!
//! `out[q][c] = Σ_k fma(a[q][k], b[k][c], ·)` for ascending k. Each output has one chain, so that the bits do not
//! depend on how rows and columns are blocked. A block of sums stays in registers; with plain loops, the compiler
//! kept it in memory (docs/perf/026). A block of many rows converts each element of `b` for all of them at once.
#![expect(unsafe_code, reason = "vector loads and stores at offsets that `product` has checked")]

use crate::fused::Fused;
use crate::math::LANES;
use crate::vector::{Right, Vector, VectorWork};

/// Dimensions of a [`product`].
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rows of the left matrix and of the product.
    pub rows: usize,
    /// Columns of the left matrix, rows of the right one.
    pub depth: usize,
    /// Columns of the right matrix and of the product.
    pub cols: usize,
}

/// A row-major matrix with a stride in elements.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    /// Elements, row by row.
    pub elements: &'a [T],
    /// Elements from row to row.
    pub stride: usize,
}

/// A mutable row-major matrix with a stride in elements.
#[derive(Debug)]
pub struct StridedMut<'a, T> {
    /// Elements, row by row.
    pub elements: &'a mut [T],
    /// Elements from row to row.
    pub stride: usize,
}

impl<T> Strided<'_, T> {
    /// Returns whether the slice contains all rows of a matrix of this size. `rows` must not be 0.
    #[inline(always)]
    fn holds(&self, rows: usize, cols: usize) -> bool {
        self.elements.len() >= (rows - 1) * self.stride + cols
    }
}

/// Destination of the sums of a product.
#[derive(Clone, Copy, Debug)]
pub enum Sums<'a> {
    /// Overwrites the output.
    Set,
    /// Starts from the output, and overwrites it.
    Continue,
    /// Computes `out = fma(out, old, sum * new)` with `[old, new]` for each row.
    Merge(&'a [[f32; 2]]),
}

/// Computes `out[q][c] = Σ_k fma(a[q][k], b[k][c], ·)` for k = 0, 1, … `depth - 1`. With `FETCH`, memory is
/// fetched meanwhile from the start of `ahead` on, an element for each element of `b`.
///
/// # Panics
/// Panics if a slice is too short.
#[inline(always)]
pub fn product<V: Vector, B: Right, const FETCH: bool>(
    size: Size,
    a: Strided<'_, f32>,
    b: Strided<'_, B>,
    ahead: &[B],
    out: StridedMut<'_, f32>,
    sums: Sums,
) {
    let Size { rows, depth, cols } = size;
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(depth == 0 || a.holds(rows, depth), "a");
    assert!(depth == 0 || b.holds(depth, cols), "b");
    assert!(Strided { elements: &*out.elements, stride: out.stride }.holds(rows, cols), "out");
    assert!(!matches!(sums, Sums::Merge(factors) if factors.len() < rows), "factors");
    let operands = Operands::<B, FETCH> { size, a, b, ahead: b.elements.as_ptr(), sums };
    // SAFETY: the caller has detected the instruction set.
    unsafe { V::apart(Product { operands, ahead, out }) }
}

/// A product whose sizes were checked.
struct Product<'a, B, const FETCH: bool> {
    operands: Operands<'a, B, FETCH>,
    /// Memory to fetch during the first rows.
    ahead: &'a [B],
    out: StridedMut<'a, f32>,
}

impl<B: Right, const FETCH: bool> VectorWork for Product<'_, B, FETCH> {
    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let rows = self.operands.size.rows;
        let mut row = 0;
        while row < rows {
            let mut operands = self.operands;
            if row == 0 && !self.ahead.is_empty() {
                operands.ahead = self.ahead.as_ptr();
            }
            // SAFETY: rows, depth and columns are inside the slices, as `product` has checked, and no more rows are left.
            row += unsafe {
                match (rows - row, V::IS_WIDE) {
                    (8.., true) => operands.rows::<V, 8, 2, 1>(row, &mut self.out),
                    (4.., true) => operands.rows::<V, 4, 4, 1>(row, &mut self.out),
                    (2.., true) => operands.rows::<V, 2, 4, 1>(row, &mut self.out),
                    (_, true) => operands.rows::<V, 1, 8, 4>(row, &mut self.out),
                    (4.., false) => operands.rows::<V, 4, 1, 1>(row, &mut self.out),
                    (2.., false) => operands.rows::<V, 2, 2, 1>(row, &mut self.out),
                    (_, false) => operands.rows::<V, 1, 4, 1>(row, &mut self.out),
                }
            };
        }
    }
}

/// Operands of a product, whose sizes were checked.
#[derive(Clone, Copy)]
struct Operands<'a, B, const FETCH: bool> {
    size: Size,
    a: Strided<'a, f32>,
    b: Strided<'a, B>,
    ahead: *const B,
    sums: Sums<'a>,
}

impl<B: Right, const FETCH: bool> Operands<'_, B, FETCH> {
    /// Computes all columns of `ROWS` rows, in blocks of `MANY`, then of `FEW` vectors, of one vector, and of one
    /// float. Returns the number of rows.
    ///
    /// # Safety
    /// The rows must be inside the slices, and the machine must have the instruction set.
    #[inline(always)]
    unsafe fn rows<V: Vector, const ROWS: usize, const MANY: usize, const FEW: usize>(
        self,
        row: usize,
        out: &mut StridedMut<'_, f32>,
    ) -> usize {
        let cols = self.size.cols;
        let mut col = 0;
        // SAFETY: guaranteed by the caller; no column beyond `cols` is accessed.
        unsafe {
            while cols - col >= MANY * LANES {
                self.block::<V, ROWS, MANY>(row, col, out);
                col += MANY * LANES;
            }
            while FEW > 1 && cols - col >= FEW * LANES {
                self.block::<V, ROWS, FEW>(row, col, out);
                col += FEW * LANES;
            }
            while cols - col >= LANES {
                self.block::<V, ROWS, 1>(row, col, out);
                col += LANES;
            }
        }
        for row in row..row + ROWS {
            (col..cols).for_each(|col| self.single(row, col, out));
        }
        ROWS
    }

    /// Computes one number.
    #[inline(always)]
    fn single(&self, row: usize, col: usize, out: &mut StridedMut<'_, f32>) {
        let out = &mut out.elements[row * out.stride + col];
        let mut sum = if let Sums::Continue = self.sums { *out } else { 0.0 };
        for k in 0..self.size.depth {
            let a = self.a.elements[row * self.a.stride + k];
            sum = a.fused(self.b.elements[k * self.b.stride + col].to_f32(), sum);
        }
        *out = match self.sums {
            Sums::Merge(factors) => out.fused(factors[row][0], sum * factors[row][1]),
            _ => sum,
        };
    }

    /// Computes `ROWS` rows by `VECTORS` vectors of columns, in registers.
    ///
    /// # Safety
    /// The block must be inside the slices, and the machine must have the instruction set.
    #[expect(clippy::needless_range_loop, reason = "iterators over vectors become calls")]
    #[inline(always)]
    unsafe fn block<V: Vector, const ROWS: usize, const VECTORS: usize>(
        &self,
        row: usize,
        col: usize,
        out: &mut StridedMut<'_, f32>,
    ) {
        let (a_stride, b_stride, out_stride) = (self.a.stride, self.b.stride, out.stride);
        let (line, width) = (64 / size_of::<B>(), VECTORS * LANES);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let a = self.a.elements.as_ptr().add(row * a_stride);
            let b = self.b.elements.as_ptr().add(col);
            let out = out.elements.as_mut_ptr().add(row * out_stride + col);
            let ahead = self.ahead.wrapping_add(col * self.size.depth);
            // Index loops: a closure called by the library is compiled without the instruction set, so that all
            // vectors would pass through memory.
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            if let Sums::Continue = self.sums {
                for row in 0..ROWS {
                    for vector in 0..VECTORS {
                        sums[row][vector] = V::load(out.add(row * out_stride + vector * LANES));
                    }
                }
            }
            let mut right = [V::splat(0.0); VECTORS];
            for k in 0..self.size.depth {
                for at in (0..if FETCH { width } else { 0 }).step_by(line) {
                    V::prefetch(ahead.wrapping_add(k * width + at).cast());
                }
                for vector in 0..VECTORS {
                    right[vector] = B::load(b.add(k * b_stride + vector * LANES));
                }
                for row in 0..ROWS {
                    let factor = V::splat(*a.add(row * a_stride + k));
                    for vector in 0..VECTORS {
                        sums[row][vector] = factor.fma(right[vector], sums[row][vector]);
                    }
                }
            }
            for index in 0..ROWS {
                for vector in 0..VECTORS {
                    let out = out.add(index * out_stride + vector * LANES);
                    let mut sum = sums[index][vector];
                    if let Sums::Merge(factors) = self.sums {
                        let [old, new] = *factors.get_unchecked(row + index);
                        sum = V::load(out).fma(V::splat(old), sum.mul(V::splat(new)));
                    }
                    sum.store(out);
                }
            }
        }
    }
}

/// Number of vectors of a [`PageFloats`].
const PAGE_VECTORS: usize = 4;

/// Floats for the positions of a page.
pub type PageFloats = [f32; PAGE_VECTORS * LANES];

/// Returns the largest of the floats, as [`max`](crate::math::max) does, except for the sign of zero.
#[inline(always)]
pub fn page_max<V: Vector>(values: &PageFloats) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: both arrays have as many floats as are accessed, and the caller has detected the instruction set.
    unsafe {
        let mut max = V::splat(f32::NEG_INFINITY);
        for vector in 0..PAGE_VECTORS {
            max = V::load(values.as_ptr().add(vector * LANES)).max(max);
        }
        max.store(lanes.as_mut_ptr());
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the sums of four pages of floats, as [`sum`](crate::math::sum) does: with plain loops, the compiler adds float by
/// float.
#[inline(always)]
pub fn page_sums<V: Vector>(rows: [&PageFloats; 4]) -> [f32; 4] {
    // SAFETY: the arrays have as many floats as are accessed, and the caller has detected the instruction set.
    unsafe {
        let one = V::splat(1.0);
        let mut sums = [V::splat(0.0); 4];
        for row in 0..4 {
            for vector in 0..PAGE_VECTORS {
                sums[row] = V::load(rows[row].as_ptr().add(vector * LANES)).fma(one, sums[row]);
            }
        }
        V::tree_sums(sums)
    }
}

/// Converts `rows` rows of `cols` columns to floats, `[rows, cols]`. Meanwhile, memory is fetched from the start of
/// `ahead` on, an element for each converted one.
///
/// # Panics
/// Panics if a slice is too short.
#[inline(always)]
pub fn widen<V: Vector, B: Right>(
    rows: usize,
    cols: usize,
    from: Strided<'_, B>,
    ahead: &[B],
    to: &mut [f32],
) {
    let ahead = if ahead.is_empty() { from.elements.as_ptr() } else { ahead.as_ptr() };
    for row in 0..rows {
        let (from, to) =
            (&from.elements[row * from.stride..][..cols], &mut to[row * cols..][..cols]);
        let ((from, from_tail), (to, to_tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut());
        for index in 0..from.len() {
            let to: &mut [f32; LANES] = &mut to[index];
            // SAFETY: both arrays have sixteen elements, and the caller has detected the instruction set.
            unsafe {
                V::prefetch(ahead.wrapping_add(row * cols + index * LANES).cast());
                B::load::<V>(from[index].as_ptr()).store(to.as_mut_ptr());
            }
        }
        for index in 0..from_tail.len() {
            to_tail[index] = from_tail[index].to_f32();
        }
    }
}
