//! Attention. Blocks of a sequence's rows and KV heads are independent of each other.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::scratch::AttentionScratch;
use crate::attention::AttentionRows;
use crate::columns::{Cut, for_each_block};
use crate::device::Cpu;
use crate::math;
use crate::matrix::CpuBuffer;
use crate::pages::CpuPool;
use crate::team::{ROW_COST, Team};
use nestling_core::backend::{AttentionHeads, HeadNorm};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvValues, PAGE_POSITIONS};
use nestling_core::sync::whole;

/// Maximum number of queries of one KV head that process a page together. Enough that the cost of widening
/// the page is small, and few enough that everything stays in the second-level cache.
const QUERIES_MAX: usize = 64;

fn page_missing() -> EngineError {
    EngineError::mismatch("page of a row", "a page", "none")
}

/// Normalizes and rotates queries and keys, then stores keys and values.
pub(super) fn rope_store(
    team: &Team,
    scratch: &mut AttentionScratch,
    heads: &AttentionHeads<Cpu>,
    rows: &StepRows,
    rope: &CpuBuffer,
    qkv: &mut CpuBuffer,
    kv: &mut CpuPool,
) -> Result<(), EngineError> {
    let (g, d) = (heads.num_key_value_heads, heads.head_dim);
    let stored = match kv.values().0 {
        KvValues::Beside => 2 * g * d,
        KvValues::KeyPrefix(_) => g * d,
    };
    let queries = if qkv.cols == stored { 0 } else { heads.num_attention_heads };
    rotate(team, heads, rope, qkv, queries, g);
    if let Some(weight) = &heads.value_norm {
        norm_values(team, weight, heads.eps, qkv, (queries + g) * d);
    }
    store(team, scratch, rows, &*qkv, queries * d, stored, kv)
}

pub(super) fn rope_queries(
    team: &Team,
    heads: &AttentionHeads<Cpu>,
    rope: &CpuBuffer,
    queries: &mut CpuBuffer,
) {
    rotate(team, heads, rope, queries, heads.num_attention_heads, 0);
}

/// Normalizes and rotates the first heads of each row: queries, then keys.
fn rotate(
    team: &Team,
    heads: &AttentionHeads<Cpu>,
    rope: &CpuBuffer,
    x: &mut CpuBuffer,
    queries: usize,
    keys: usize,
) {
    let d = heads.head_dim;
    let cols = x.cols;
    team.for_each_row(&mut x.values, cols, ROW_COST * cols, |index, row| {
        let angles = &rope.values[index * rope.cols..][..rope.cols];
        let (cos, sin) = angles.split_at(angles.len() / 2);
        let (queries, rest) = row.split_at_mut(queries * d);
        for (x, norm) in [(queries, &heads.query_norm), (&mut rest[..keys * d], &heads.key_norm)] {
            if let (HeadNorm::FullWidth(weight), false) = (norm, x.is_empty()) {
                team.kernels.rms_norm_in_place(x, weight, heads.eps);
            }
            for x in x.chunks_exact_mut(d) {
                if let HeadNorm::PerHead(weight) = norm {
                    team.kernels.rms_norm_in_place(&mut x[..weight.len()], weight, heads.eps);
                }
                math::rope(heads.rope_pairs, &mut x[heads.rope_first..][..angles.len()], cos, sin);
                if let HeadNorm::PerHeadAfterRope(weight) = norm {
                    team.kernels.rms_norm_in_place(&mut x[..weight.len()], weight, heads.eps);
                }
            }
        }
    });
}

/// Normalizes the value heads of each row, which start at column `first`.
fn norm_values(team: &Team, weight: &[f32], eps: f32, qkv: &mut CpuBuffer, first: usize) {
    let cols = qkv.cols;
    team.for_each_row(&mut qkv.values, cols, ROW_COST * (cols - first), |_, row| {
        for value in row[first..].chunks_exact_mut(weight.len().max(1)) {
            team.kernels.rms_norm_in_place(value, weight, eps);
        }
    });
}

/// Stores keys and values, one page at a time.
fn store(
    team: &Team,
    scratch: &mut AttentionScratch,
    rows: &StepRows,
    qkv: &CpuBuffer,
    first: usize,
    width: usize,
    kv: &mut CpuPool,
) -> Result<(), EngineError> {
    let AttentionScratch { places, taken, .. } = scratch;
    let values = kv.values().0;
    places.clear();
    for row in 0..rows.len() {
        let (page, position) = rows.place(row).ok_or_else(page_missing)?;
        places.push((page, position, row));
    }
    places.sort_unstable();
    let mut result = Ok(());
    for chunk in places.chunk_by(|a, b| a.0 == b.0) {
        match kv.take(chunk[0].0) {
            Ok(page) => {
                let start = taken.last().map_or(0, |(_, range)| range.end);
                taken.push((page, start..start + chunk.len()));
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    team.for_each_mut(taken, 4 * rows.len() * width, &|_, (page, range)| {
        for (_, position, row) in &places[range.clone()] {
            let row = &qkv.values[row * qkv.cols + first..][..width];
            match values {
                KvValues::Beside => {
                    let (keys, values) = row.split_at(width / 2);
                    page.store(team.kernels, *position, keys, values);
                }
                KvValues::KeyPrefix(dim) => page.store_shared(team.kernels, *position, row, dim),
            }
        }
    });
    taken.drain(..).for_each(|(page, _)| kv.put_back(page));
    result
}

/// Computes causal attention over the pages.
pub(super) fn attend(
    team: &Team,
    scratch: &mut AttentionScratch,
    heads: &AttentionHeads<Cpu>,
    rows: &StepRows,
    qkv: &CpuBuffer,
    kv: &CpuPool,
    out: &mut CpuBuffer,
) -> Result<(), EngineError> {
    let (h, g, d) = (heads.num_attention_heads, heads.num_key_value_heads, heads.head_dim);
    let value_dim = kv.values().1;
    out.resize(rows.len())?;
    let read = split_rows(rows, (QUERIES_MAX / (h / g)).max(1), &mut scratch.borders, kv)?;
    let multiplications = read * h * (d + value_dim);
    let forks = team.forks(multiplications);
    let heads_of_blocks = (scratch.borders.len() - 1) * g;
    let parts_per_head = match forks {
        true => split_heads(h / g, heads_of_blocks.max(1), team.pool.threads()),
        false => 1,
    };
    let group = h / g / parts_per_head;
    scratch.rows.resize_with(team.pool.threads(), Mutex::default);
    // Any thread may get the largest block, so that all reserve memory for it.
    // Default: there may be no blocks.
    let most = scratch.borders.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
    for slot in &mut scratch.rows {
        whole(slot.get_mut()).try_reserve(most * group, d)?;
    }
    let slots = &scratch.rows;
    let (width, attended_width) = (group * d, group * value_dim);
    for_each_block(
        &team.pool,
        forks,
        &mut out.values,
        out.cols,
        Cut::At(&scratch.borders),
        Cut::Every(attended_width),
        &|part, block| {
            let range = block.rows();
            let mut slot = free_slot(slots);
            slot.clear(d, value_dim);
            for row in range.clone() {
                let queries = &qkv.values[row * qkv.cols + part * width..][..width];
                for query in queries.chunks_exact(d) {
                    slot.push(query, visible_positions(heads, rows.positions[row]));
                }
            }
            slot.start();
            let first =
                visible_positions(heads, rows.positions[range.start]).start / PAGE_POSITIONS;
            let visible = rows.positions[range.end - 1] as usize + 1;
            let pages = &rows.pages[rows.sequences[range.start] as usize];
            let pages = &pages[..visible.div_ceil(PAGE_POSITIONS)];
            // The pages were checked before.
            let head = |index: usize| kv.head(*pages.get(index)?, part / parts_per_head).ok();
            for index in first..pages.len() {
                let (block, next) = (head(index), head(index + 1));
                if let Some(block) = block {
                    let position = index * PAGE_POSITIONS;
                    team.kernels.attend_page(block, next, position, heads.scale, &mut slot);
                }
            }
            let sinks = heads.sinks.as_deref();
            let sinks = sinks.map_or(&[][..], |sinks| &sinks[part * group..][..group]);
            for (index, attended) in slot.finish(sinks).chunks_exact(attended_width).enumerate() {
                block.row(index).copy_from_slice(attended);
            }
        },
    );
    Ok(())
}

/// Returns how many parts the `group` queries of each KV head are divided into, all of the same size. There is one
/// if the `heads` of all blocks occupy the threads. Otherwise several threads read the same pages, each for other
/// queries.
pub(super) fn split_heads(group: usize, heads: usize, threads: usize) -> usize {
    let wanted = threads.div_ceil(heads).min(group);
    // Default: a group of any size has one part.
    (1..=wanted).rev().find(|parts| group.is_multiple_of(*parts)).unwrap_or(1)
}

/// Returns the positions that are visible to a row at `position`.
fn visible_positions(heads: &AttentionHeads<Cpu>, position: u32) -> Range<usize> {
    let end = position as usize + 1;
    end.saturating_sub(heads.sliding_window.unwrap_or(end))..end
}

/// Splits the rows into blocks of one sequence and ascending positions, with at most `most` rows each.
/// Returns the number of positions that all rows together read.
fn split_rows(
    rows: &StepRows,
    most: usize,
    borders: &mut Vec<usize>,
    kv: &CpuPool,
) -> Result<usize, EngineError> {
    borders.clear();
    let mut read = 0;
    for row in 0..rows.len() {
        rows.place(row).ok_or_else(page_missing)?;
        let position = rows.positions[row];
        read += position as usize + 1;
        let goes_on = row > 0
            && rows.sequences[row] == rows.sequences[row - 1]
            && position > rows.positions[row - 1];
        let full = borders.last().is_some_and(|first| row - first >= most);
        if !goes_on || full {
            borders.push(row);
        }
    }
    borders.push(rows.len());
    for ends in borders.windows(2).filter(|ends| ends[0] < ends[1]) {
        let visible = rows.positions[ends[1] - 1] as usize + 1;
        let pages = &rows.pages[rows.sequences[ends[0]] as usize];
        let pages = &pages[..visible.div_ceil(PAGE_POSITIONS)];
        pages.iter().try_for_each(|page| kv.check(*page))?;
    }
    Ok(read)
}

/// Returns a slot that no other part uses. There is one per thread, so that one is free.
fn free_slot(slots: &[Mutex<AttentionRows>]) -> MutexGuard<'_, AttentionRows> {
    loop {
        for slot in slots {
            match slot.try_lock() {
                Ok(slot) => return slot,
                Err(TryLockError::Poisoned(slot)) => return slot.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        // Reached only if another thread is about to release its slot.
        std::hint::spin_loop();
    }
}
