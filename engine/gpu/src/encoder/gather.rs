//! Gather of the columns that other ranks computed, from device to device.
//!
//! 1. This rank's columns are packed and the device is waited for, so that a failure of its work is known.
//! 2. All ranks exchange the states of their connections through the host's group. A rank that has failed takes part in
//!    that exchange with its failure, and then no rank starts a transfer.
//! 3. If all are connected, the packed columns move from device to device. Otherwise the host moves them.
//!
//! Bytes are moved and nothing is added, so both ways give the same bits.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::group::{Group, RankError, RankShare};

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::GpuBuffer;
use crate::peers::{PeerLink, PeerPart, PeerState};
use crate::scratch::ScratchRoom;

/// Replaces the columns of other ranks. Returns false if the host has to move them.
pub(super) fn columns<D: Device>(
    device: &mut D,
    group: &dyn Group,
    columns: &dyn Fn(RankShare) -> Vec<Range<usize>>,
    out: &mut GpuBuffer<D>,
) -> Result<bool, EngineError> {
    let Some(mut link) = device.state().peers.take() else { return Ok(false) };
    let done = gather(device, &mut *link, group, columns, out);
    device.state().peers = Some(link);
    done
}

fn gather<D: Device>(
    device: &mut D,
    link: &mut dyn PeerLink<D::Binding>,
    group: &dyn Group,
    columns: &dyn Fn(RankShare) -> Vec<Range<usize>>,
    out: &mut GpuBuffer<D>,
) -> Result<bool, EngineError> {
    let own = group.share();
    let columns: Vec<_> = own.all().map(columns).collect(); // [ranks]
    let row_bytes =
        |of_rank: &Vec<Range<usize>>| 4 * of_rank.iter().map(Range::len).sum::<usize>() as u64;
    let sizes: Vec<u64> =
        columns.iter().map(|of_rank| row_bytes(of_rank) * out.rows as u64).collect();
    let mut parts = Vec::new();
    if link.state() != PeerState::HostOnly {
        let ranges = device.scratch_ranges(ScratchRoom::Gathered, &sizes)?;
        let part = |(memory, bytes): (D::Binding, &u64)| PeerPart { memory, bytes: *bytes };
        parts = ranges.into_iter().zip(&sizes).map(part).collect();
        device.recorder().begin_operation()?;
        copy(device, &columns[own.rank], own.rank, &sizes, out, Direction::Pack)?;
        device.recorder().finish()?;
    }
    if !is_connected(link, group)? {
        return Ok(false);
    }
    if let Err(error) = link.broadcast_each(&parts, &|| group.beat()) {
        link.give_up();
        return Err(error);
    }
    device.recorder().begin_operation()?;
    for (rank, of_rank) in columns.iter().enumerate().filter(|(rank, _)| *rank != own.rank) {
        copy(device, of_rank, rank, &sizes, out, Direction::Unpack)?;
    }
    out.mark_changed();
    Ok(true)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Pack,
    Unpack,
}

/// Copies the columns of a rank between a buffer and scratch memory, where they are contiguous.
fn copy<D: Device>(
    device: &mut D,
    columns: &[Range<usize>],
    rank: usize,
    sizes: &[u64], // [ranks]
    out: &GpuBuffer<D>,
    direction: Direction,
) -> Result<(), EngineError> {
    let mut at: u64 = sizes[..rank].iter().sum();
    for row in 0..out.rows {
        for range in columns.iter().filter(|range| !range.is_empty()) {
            let bytes = 4 * range.len() as u64;
            let packed = device.scratch_range(ScratchRoom::Gathered, at, bytes)?;
            let place = out.range(4 * (row * out.cols + range.start) as u64, bytes);
            let (from, to) = match direction {
                Direction::Pack => (&place, &packed),
                Direction::Unpack => (&packed, &place),
            };
            device.recorder().copy(from, to, bytes)?;
            at += bytes;
        }
    }
    Ok(())
}

/// Agrees on whether the devices of all ranks are connected, and connects them if all can be and are not. All ranks
/// make the same exchanges and get the same answer.
fn is_connected<Binding>(
    link: &mut dyn PeerLink<Binding>,
    group: &dyn Group,
) -> Result<bool, EngineError> {
    let mut messages = Vec::new();
    group.all_gather(&link.state().to_bytes(), &mut messages)?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        PeerState::from_bytes(bytes).ok_or_else(|| RankError::Mismatch {
            rank,
            expected: "the state of a connection".into(),
            found: format!("{} bytes", bytes.len()),
        })
    };
    let states = messages.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    if states.contains(&PeerState::HostOnly) {
        return Ok(false);
    }
    let first = states.first().copied();
    if matches!(first, Some(PeerState::Open(_))) && states.iter().all(|state| Some(*state) == first)
    {
        return Ok(true);
    }
    let id = match group.share().rank {
        // Default: without an id, no rank connects.
        0 => link.new_id().unwrap_or_default(),
        _ => Vec::new(),
    };
    group.all_gather(&id, &mut messages)?;
    // Default: without an id, no rank connects.
    let id = messages.first().cloned().unwrap_or_default();
    let beat = || group.beat();
    let connected = !id.is_empty() && link.connect(group.share(), &id, &beat).is_ok();
    group.all_gather(&[u8::from(connected)], &mut messages)?;
    let are_all = messages.iter().all(|message| message == &[1]);
    if !are_all {
        link.give_up();
    }
    Ok(are_all)
}
