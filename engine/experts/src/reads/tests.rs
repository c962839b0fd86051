#[cfg(shuttle)]
mod schedules;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nestling_formats::Plane;
use nestling_formats::store::{Extent, GroupId, Store};

use super::buffers::{BufferPool, PAGE_BYTES};
use super::options::{Checks, ReadOptions};
use super::shared::{IdleReads, Queue, SharedReads};
use super::{ReadClass, ReadRequest};

/// Returns the read state of the bundled store, without a reader.
pub(super) fn shared(options: &ReadOptions) -> SharedReads {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
    SharedReads::new(Arc::new(Store::open(path).unwrap()), options, Checks::Done)
}

pub(super) fn bundled_extents(store: &Store, count: usize) -> Vec<Extent> {
    let experts = store.groups().iter().filter(|group| matches!(group.id, GroupId::Expert(_)));
    let extents = experts.filter_map(|group| store.extent(group, Plane::P3).cloned());
    extents.take(count).collect()
}

/// Submits reads of extents and waits for all of them.
pub(super) fn all_arrive(shared: &SharedReads, extents: &[Extent]) {
    for (tag, extent) in (0..).zip(extents) {
        shared.submit(ReadRequest { tag, extent: extent.clone(), class: ReadClass::Urgent });
    }
    let (mut left, begun) = (extents.len(), Instant::now());
    while left > 0 {
        let Some(done) = shared.try_next() else {
            assert!(begun.elapsed() < Duration::from_secs(20), "{left} reads have not ended");
            std::thread::sleep(Duration::from_micros(100));
            continue;
        };
        let expected = shared.store().read_extent_vec(&extents[done.tag as usize]).unwrap();
        assert_eq!(done.result.unwrap().as_ref(), expected);
        left -= 1;
    }
}

fn request(tag: u64, class: ReadClass) -> ReadRequest {
    let extent = Extent {
        group: 0,
        plane: Plane::P2,
        offset: 0,
        length: 1,
        hash: [0; 16],
        error_drop: None,
    };
    ReadRequest { tag, extent, class }
}

fn drain(queue: &mut Queue, idle: IdleReads) -> Vec<u64> {
    std::iter::from_fn(|| queue.pop(idle).map(|job| job.tag)).collect()
}

#[test]
fn urgent_reads_start_first_and_in_order() {
    let mut queue = Queue::default();
    let classes = [ReadClass::Idle, ReadClass::Urgent, ReadClass::Idle, ReadClass::Urgent];
    for (tag, class) in (0..).zip(classes) {
        queue.push(request(tag, class), 0);
    }
    assert_eq!(drain(&mut queue, IdleReads::Wait), [1, 3]);
    assert_eq!(drain(&mut queue, IdleReads::May), [0, 2]);
}

#[test]
fn background_reads_start_last_and_may_be_hastened() {
    let mut queue = Queue::default();
    for tag in 0..5 {
        queue.push(request(tag, ReadClass::Background), 0);
    }
    queue.push(request(5, ReadClass::Idle), 0);
    queue.hasten(3);
    assert!(queue.promote(4) && queue.withdraw(1));
    assert_eq!(drain(&mut queue, IdleReads::Wait), [4]);
    assert_eq!(drain(&mut queue, IdleReads::May), [5, 3]);
    assert_eq!(queue.len(), 2);
    assert_eq!(drain(&mut queue, IdleReads::AndBackground), [0, 2]);
}

#[test]
fn promoted_and_withdrawn_reads_move_once() {
    let mut queue = Queue::default();
    for tag in 0..4 {
        queue.push(request(tag, ReadClass::Idle), tag);
    }
    assert!(queue.promote(2) && !queue.promote(2) && !queue.promote(9));
    assert!(queue.withdraw(0) && !queue.withdraw(0));
    assert_eq!(queue.take_older(2).iter().map(|job| job.tag).collect::<Vec<_>>(), [1]);
    assert_eq!((queue.len(), drain(&mut queue, IdleReads::May)), (2, vec![2, 3]));
}

#[test]
fn buffers_are_used_again_and_free_ones_stay_within_their_limit() {
    let pool = Arc::new(BufferPool::new(u64::MAX));
    let sizes = [PAGE_BYTES, 3 * PAGE_BYTES, 100 * PAGE_BYTES];
    let buffers: Vec<_> = sizes.iter().map(|size| pool.take(*size).unwrap()).collect();
    let most = 104 * PAGE_BYTES as u64;
    assert_eq!(pool.bytes(), (most, 0));
    drop(buffers);
    assert_eq!(pool.bytes(), (0, most));
    let mut other = pool.take(50 * PAGE_BYTES - 7).unwrap();
    assert!(other.bytes().as_ptr().addr().is_multiple_of(PAGE_BYTES));
    assert_eq!(other.bytes_mut().len(), 50 * PAGE_BYTES);
    let (lent, free) = pool.bytes();
    assert_eq!((lent, free), (50 * PAGE_BYTES as u64, most));
    // Releases buffers of the size with the most bytes.
    pool.set_limit(60 * PAGE_BYTES as u64);
    assert_eq!(pool.bytes().1, 4 * PAGE_BYTES as u64);
    pool.set_limit(PAGE_BYTES as u64);
    drop(other);
    assert!(pool.bytes().1 <= PAGE_BYTES as u64, "{:?}", pool.bytes());
    pool.trim();
    assert_eq!(pool.bytes(), (0, 0));
}

#[test]
fn large_buffers_keep_what_is_in_them() {
    let pool = Arc::new(BufferPool::new(1 << 20));
    let sizes = [600_000, 1_300_000, 300_000];
    let mut held = Vec::new();
    for round in 0..60u8 {
        let mut buffer = pool.take(sizes[usize::from(round) % 3]).unwrap();
        buffer.bytes_mut().fill(round);
        held.push((round, buffer));
        if round % 2 == 1 {
            held.swap_remove(usize::from(round) * 7 % held.len());
        }
        let sum: usize = held.iter().map(|(_, buffer)| buffer.bytes().len()).sum();
        let (lent, free) = pool.bytes();
        assert!(lent == sum as u64 && free <= 1 << 20);
    }
    for (round, buffer) in &held {
        assert!(buffer.bytes().iter().all(|byte| byte == round));
    }
    drop(held);
    pool.trim();
    assert_eq!(pool.bytes(), (0, 0));
}
