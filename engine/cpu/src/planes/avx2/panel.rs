//! Products of many rows for AVX2 and AVX-VNNI. Sixteen groups of a tile are decoded once to a panel, which stays in
//! the first-level cache, and are then multiplied with blocks of eight packed rows.
//!
//! Of each block, two to four rows at a time have their sums of one group in registers, so that they share loads of the
//! panel's values.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::asm;
use std::arch::x86_64::*;

use nestling_formats::nested::TILE_ROWS;

use super::{HalfTiles, halves, in_registers};
use crate::rows::{PACKED_ROWS, PackedGroup};

/// Number of groups of a panel: 8 KiB of bytes.
pub const GROUPS: usize = 16;

/// Number of rows from which a panel pays for packing activations.
pub const PACKS_FROM: usize = 16;

/// In place of the number of chunks that are added in 16 bits: `vpdpbusd` adds in 32.
const VNNI: usize = 32;

/// Decoded groups of a tile.
#[repr(C, align(64))]
pub struct Panel {
    /// Unsigned bytes of each group.
    pub values: [HalfTiles; GROUPS],
    /// Weight scales, `[groups, sub-blocks, 16]`.
    pub scales: [[f32; TILE_ROWS]; 2 * GROUPS],
    /// Minima in the same layout, if there are any.
    pub minima: [[f32; TILE_ROWS]; 2 * GROUPS],
}

/// Meaning of a panel's bytes: a weight is `byte * stride - zero`, scaled.
#[derive(Clone, Copy)]
pub struct PanelForm {
    pub stride: i32,
    pub zero: i32,
    /// Number of sub-blocks of a group, 1 or 2.
    pub subs: usize,
    pub has_minima: bool,
}

/// A function that adds the products of a panel's first groups to the sums of up to eight rows, which have one
/// [`PackedGroup`] for each group.
pub type AddRows = unsafe fn(&Panel, PanelForm, &[PackedGroup], &mut [[f32; TILE_ROWS]]);

impl Panel {
    /// Creates a panel of zeros.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn zero() -> Self {
        let (values, zeros) = ([[_mm256_setzero_si256(); 2]; 8], [[0.0; TILE_ROWS]; 2 * GROUPS]);
        Self { values: [values; GROUPS], scales: zeros, minima: zeros }
    }
}

/// Selects the function for a form.
macro_rules! of_form {
    ($form:expr, $module:ident, $mode:expr) => {
        match ($form.subs, $form.has_minima) {
            _ if $form.has_minima && $form.zero != 0 => return None,
            (1, false) => $module::add_rows::<$mode, 1, false>,
            (1, true) => $module::add_rows::<$mode, 1, true>,
            (_, false) => $module::add_rows::<$mode, 2, false>,
            (_, true) => $module::add_rows::<$mode, 2, true>,
        }
    };
}

/// Returns the function for AVX2, by the number of chunks that are added in 16 bits. `None` stands for bytes that
/// are signed, and for minima beside an offset.
pub fn plain(form: PanelForm, chunks: usize) -> Option<AddRows> {
    Some(match chunks {
        8 => of_form!(form, of_avx2, 8),
        4 => of_form!(form, of_avx2, 4),
        2 => of_form!(form, of_avx2, 2),
        _ => return None,
    })
}

/// Returns the function for AVX-VNNI, which needs no number of chunks, or `None` for minima beside an offset.
pub fn vnni(form: PanelForm, _: usize) -> Option<AddRows> {
    Some(of_form!(form, of_avx_vnni, VNNI))
}

/// Returns whether chunks are added in pairs for three rows at a time, which share loads of values. With two sub-blocks
/// it takes more instructions.
const fn is_in_pairs(mode: usize, subs: usize) -> bool {
    mode == 2 && subs == 1
}

/// Computes the exact sums of a sub-block by halves of the tile; `MODE` chunks are added in 16 bits. A macro, since
/// a function would return its sums through memory where the compiler does not inline it.
macro_rules! plain_dots {
    ($slot:ident, $lane:ident, $sub:ident) => {{
        let (count, mut sums) = (8 / SUBS, starts::<SUBS, MINIMA, T>($slot, $lane, $sub));
        let (first, run) = ($sub * count, MODE.min(count));
        let stride = _mm256_set1_epi16($slot.form.stride as i16);
        if is_in_pairs(MODE, SUBS) {
            let mut cursor = Cursor::new($slot, $lane);
            // The compiler does not unroll loops with `asm` blocks.
            cursor.add_chunk_pair::<0, T>(stride, &mut sums);
            cursor.add_chunk_pair::<2, T>(stride, &mut sums);
            cursor.add_chunk_pair::<4, T>(stride, &mut sums);
            cursor.add_chunk_pair::<6, T>(stride, &mut sums);
        } else {
            for start in (first..first + count).step_by(run) {
                let mut pairs = [[_mm256_setzero_si256(); 2]; T];
                for chunk in (start..start + run).step_by(2) {
                    // The compiler does not unroll loops with `in_registers`.
                    add_chunk($slot, chunk, $lane, &mut pairs);
                    add_chunk($slot, chunk + 1, $lane, &mut pairs);
                }
                for t in 0..T {
                    for half in 0..2 {
                        let fours = _mm256_madd_epi16(pairs[t][half], stride);
                        sums[t][half] = _mm256_add_epi32(sums[t][half], fours);
                    }
                }
            }
        }
        sums
    }};
}

/// Computes the same sums with VNNI, for any bytes.
macro_rules! vnni_dots {
    ($slot:ident, $lane:ident, $sub:ident) => {{
        const { assert!(MODE == VNNI) };
        let (count, mut sums) = (8 / SUBS, [[_mm256_setzero_si256(); 2]; T]);
        let values = &$slot.panel.values[$slot.group];
        for chunk in $sub * count..($sub + 1) * count {
            for t in 0..T {
                let x = _mm256_set1_epi32(*$slot.x.values[chunk].get_unchecked($lane + t));
                for half in 0..2 {
                    sums[t][half] = _mm256_dpbusd_avx_epi32(sums[t][half], values[chunk][half], x);
                }
            }
        }
        if $slot.form.stride != 1 {
            for sum in sums.as_flattened_mut() {
                *sum = _mm256_mullo_epi32(*sum, _mm256_set1_epi32($slot.form.stride));
            }
        }
        let starts = starts::<SUBS, MINIMA, T>($slot, $lane, $sub);
        for (sum, start) in sums.as_flattened_mut().iter_mut().zip(starts.as_flattened()) {
            *sum = _mm256_add_epi32(*sum, *start);
        }
        sums
    }};
}

/// Defines the products of panels. Parameters are a list of features and the sums of a sub-block.
macro_rules! products_for {
    ($module:ident, $features:literal, $dots:ident) => {
        mod $module {
            use super::*;

            /// Implements [`AddRows`].
            ///
            /// # Safety
            /// The machine must have the features, and the panel must have as many groups as `x`.
            #[target_feature(enable = $features)]
            pub unsafe fn add_rows<const MODE: usize, const SUBS: usize, const MINIMA: bool>(
                panel: &Panel,
                form: PanelForm,
                x: &[PackedGroup],
                out: &mut [[f32; TILE_ROWS]],
            ) {
                for (group, x) in x.iter().enumerate() {
                    let sums = XSums::new::<MINIMA>(x, form);
                    let slot = Slot { panel, form, group, x, sums: &sums };
                    // SAFETY: guaranteed by the caller; lanes are below the number of rows.
                    unsafe {
                        // As many rows as have their sums and what is added to them in registers.
                        match MODE {
                            _ if is_in_pairs(MODE, SUBS) => {
                                add_some::<MODE, SUBS, MINIMA, 3>(slot, out);
                            }
                            2 | 4 => add_some::<MODE, SUBS, MINIMA, 2>(slot, out),
                            _ => add_some::<MODE, SUBS, MINIMA, 4>(slot, out),
                        }
                    }
                }
            }

            /// Adds a group to the sums of up to eight rows, `T` at a time.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_some<
                const MODE: usize,
                const SUBS: usize,
                const MINIMA: bool,
                const T: usize,
            >(
                slot: Slot<SUBS>,
                out: &mut [[f32; TILE_ROWS]],
            ) {
                let (some, rest) = out.as_chunks_mut::<T>();
                let first = some.len() * T;
                let (twos, one) = rest.as_chunks_mut();
                let last = first + twos.len() * 2;
                // SAFETY: guaranteed by the caller.
                unsafe {
                    for (index, out) in some.iter_mut().enumerate() {
                        add_group::<MODE, SUBS, MINIMA, T>(slot, index * T, out);
                    }
                    for (index, out) in twos.iter_mut().enumerate() {
                        add_group::<MODE, SUBS, MINIMA, 2>(slot, first + index * 2, out);
                    }
                    if let [out] = one {
                        let out = std::array::from_mut(out);
                        add_group::<MODE, SUBS, MINIMA, 1>(slot, last, out);
                    }
                }
            }

            /// Adds a group to the sums of `T` rows from lane `lane` on.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_group<
                const MODE: usize,
                const SUBS: usize,
                const MINIMA: bool,
                const T: usize,
            >(
                slot: Slot<SUBS>,
                lane: usize,
                out: &mut [[f32; TILE_ROWS]; T],
            ) {
                let Slot { panel, group, x, .. } = slot;
                for sub in 0..SUBS {
                    // SAFETY: the lanes are inside the block, and a row of the panel is 16 floats.
                    unsafe {
                        let dots = $dots!(slot, lane, sub);
                        let scales = halves(&panel.scales[group * SUBS + sub]);
                        for t in 0..T {
                            let scale_of_x = _mm256_broadcast_ss(x.scales.get_unchecked(lane + t));
                            let mut acc = halves(&out[t]);
                            for half in 0..2 {
                                let scale = _mm256_mul_ps(scale_of_x, scales[half]);
                                let dots = _mm256_cvtepi32_ps(dots[t][half]);
                                acc[half] = _mm256_fmadd_ps(dots, scale, acc[half]);
                            }
                            if MINIMA && SUBS == 1 {
                                add_minima(slot, sub, lane + t, &mut acc);
                            }
                            _mm256_storeu_ps(out[t].as_mut_ptr(), acc[0]);
                            _mm256_storeu_ps(out[t][8..].as_mut_ptr(), acc[1]);
                        }
                    }
                }
                if MINIMA && SUBS == 2 {
                    for t in 0..T {
                        // SAFETY: as above.
                        unsafe {
                            let mut acc = halves(&out[t]);
                            for sub in 0..SUBS {
                                add_minima(slot, sub, lane + t, &mut acc);
                            }
                            _mm256_storeu_ps(out[t].as_mut_ptr(), acc[0]);
                            _mm256_storeu_ps(out[t][8..].as_mut_ptr(), acc[1]);
                        }
                    }
                }
            }
        }
    };
}

products_for!(of_avx2, "avx2,fma", plain_dots);
products_for!(of_avx_vnni, "avx2,fma,avxvnni", vnni_dots);

/// A group of a panel and of a block of rows.
#[derive(Clone, Copy)]
struct Slot<'a, const SUBS: usize> {
    panel: &'a Panel,
    form: PanelForm,
    group: usize,
    x: &'a PackedGroup,
    sums: &'a XSums<SUBS>,
}

/// Sums of the activations of each sub-block and of eight rows: times the scales of the activations where the form has
/// minima, otherwise times `-zero`.
struct XSums<const SUBS: usize>([__m256i; SUBS]);

impl<const SUBS: usize> XSums<SUBS> {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new<const MINIMA: bool>(x: &PackedGroup, form: PanelForm) -> Self {
        // SAFETY: all loads are eight words.
        let (corrections, scales) = unsafe {
            let corrections = _mm256_loadu_si256(x.corrections.as_ptr().cast());
            (corrections, _mm256_loadu_ps(x.scales.as_ptr()))
        };
        // A correction is -128 times the sum.
        let all = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_srai_epi32::<7>(corrections));
        let mut sums = [all; SUBS];
        if let [first, second] = sums.as_mut_slice() {
            *first = first_sums(x);
            *second = _mm256_sub_epi32(all, *first);
        }
        for sum in &mut sums {
            *sum = if MINIMA {
                _mm256_castps_si256(_mm256_mul_ps(scales, _mm256_cvtepi32_ps(*sum)))
            } else {
                _mm256_mullo_epi32(*sum, _mm256_set1_epi32(-form.zero))
            };
        }
        Self(sums)
    }

    /// Broadcasts the sum of one row.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn of(&self, sub: usize, lane: usize) -> __m256i {
        // SAFETY: the caller's lane is below eight.
        _mm256_set1_epi32(unsafe { *(&raw const self.0[sub]).cast::<i32>().add(lane) })
    }
}

/// Returns the sums of the first 16 activations of each row.
#[inline]
#[target_feature(enable = "avx2")]
fn first_sums(x: &PackedGroup) -> __m256i {
    let mut pairs = _mm256_setzero_si256();
    for words in &x.values[..4] {
        // SAFETY: the load is eight words.
        let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(1), words));
    }
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Returns the sums of a sub-block and of `T` rows before any product: with minima 0, as bytes have no offset then.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn starts<const SUBS: usize, const MINIMA: bool, const T: usize>(
    slot: Slot<SUBS>,
    lane: usize,
    sub: usize,
) -> [[__m256i; 2]; T] {
    let mut sums = [[_mm256_setzero_si256(); 2]; T];
    if !MINIMA {
        for (t, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's lanes are inside the block.
            *sums = [unsafe { slot.sums.of(sub, lane + t) }; 2];
        }
    }
    sums
}

/// Adds the minima of a sub-block to the sums of one row.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_minima<const SUBS: usize>(
    slot: Slot<SUBS>,
    sub: usize,
    lane: usize,
    acc: &mut [__m256; 2],
) {
    // SAFETY: the caller's lane is inside the block, and a row of the panel is 16 floats.
    unsafe {
        let minima = halves(&slot.panel.minima[slot.group * SUBS + sub]);
        let scaled = _mm256_castsi256_ps(slot.sums.of(sub, lane));
        for half in 0..2 {
            acc[half] = _mm256_fmadd_ps(scaled, minima[half], acc[half]);
        }
    }
}

/// Adds the products of a chunk of four columns with the rows from lane `lane` on.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name rows and halves")]
unsafe fn add_chunk<const SUBS: usize, const T: usize>(
    slot: Slot<SUBS>,
    chunk: usize,
    lane: usize,
    pairs: &mut [[__m256i; 2]; T],
) {
    for t in 0..T {
        // SAFETY: the caller's chunk and lanes are inside the group.
        let (values, x) = unsafe {
            let words = slot.x.values.get_unchecked(chunk);
            (
                slot.panel.values.get_unchecked(slot.group).get_unchecked(chunk),
                _mm256_set1_epi32(*words.get_unchecked(lane + t)),
            )
        };
        for half in 0..2 {
            let some = _mm256_maddubs_epi16(values[half], x);
            pairs[t][half] = _mm256_add_epi16(pairs[t][half], some);
        }
        in_registers(&mut pairs[t]);
    }
}

/// Addresses of a group's values and of its activations from one lane on.
struct Cursor {
    values: *const [__m256i; 2],
    x: *const [i32; PACKED_ROWS],
}

impl Cursor {
    #[inline]
    fn new<const SUBS: usize>(slot: Slot<SUBS>, lane: usize) -> Self {
        let x = slot.x.values.as_ptr().cast::<i32>().wrapping_add(lane).cast();
        Self { values: slot.panel.values[slot.group].as_ptr(), x }
    }

    /// Adds the products of two chunks of four columns, which are added in 16 bits, with `T` rows. Values are loaded once
    /// for all rows.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_chunk_pair<const CHUNK: usize, const T: usize>(
        &mut self,
        stride: __m256i,
        sums: &mut [[__m256i; 2]; T],
    ) {
        self.separate(sums);
        // SAFETY: the caller's chunk and lanes are inside the group.
        unsafe {
            let (first, second) = (*self.values.add(CHUNK), *self.values.add(CHUNK + 1));
            for t in 0..T {
                let xs = [
                    _mm256_set1_epi32(*self.x.add(CHUNK).cast::<i32>().add(t)),
                    _mm256_set1_epi32(*self.x.add(CHUNK + 1).cast::<i32>().add(t)),
                ];
                for half in 0..2 {
                    let pairs = _mm256_add_epi16(
                        _mm256_maddubs_epi16(first[half], xs[0]),
                        _mm256_maddubs_epi16(second[half], xs[1]),
                    );
                    let fours = _mm256_madd_epi16(pairs, stride);
                    sums[t][half] = _mm256_add_epi32(sums[t][half], fours);
                }
                self.separate(sums);
            }
        }
    }

    /// Separates what comes before from what comes after. Otherwise the compiler loads more than there are registers for.
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written there")]
    fn separate<const T: usize>(&mut self, sums: &mut [[__m256i; 2]; T]) {
        for sums in sums {
            // SAFETY: there are no instructions, so that both addresses stay the same.
            unsafe {
                asm!(
                    "/* {} {} {} {} */",
                    inout(reg) self.values,
                    inout(reg) self.x,
                    inout(ymm_reg) sums[0],
                    inout(ymm_reg) sums[1],
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
    }
}
