//! Reads and their buffers under random thread schedules: readers, callers, and the watcher that abandons
//! reads. Only built with `--cfg shuttle`.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use nestling_core::sync::thread;
use nestling_formats::store::{Extent, MemoryStorage, Store};

use super::bundled_extents;
use crate::reads::buffers::{BufferPool, PAGE_BYTES};
use crate::reads::options::{Checks, ReadOptions};
use crate::reads::reader::read_until_closed;
use crate::reads::shared::{SharedReads, stall};
use crate::reads::thread_staging::ThreadStaging;
use crate::reads::{ReadClass, ReadDone, ReadRequest};

fn schedules() -> usize {
    let asked = std::env::var("NESTLING_SCHEDULES").ok();
    asked.map_or(1000, |count| count.parse().unwrap())
}

fn check(test: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(test, schedules());
}

/// Returns the bundled store in memory, and its four shortest expert extents.
fn stored() -> (Arc<Store>, Vec<Extent>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    let storage = Arc::new(MemoryStorage::new("bundled", std::fs::read(path).unwrap()));
    let store = Arc::new(Store::from_storage(storage, false).unwrap());
    let mut extents = bundled_extents(&store, 64);
    extents.sort_by_key(|extent| extent.length);
    extents.truncate(4);
    (store, extents)
}

fn shared(store: &Arc<Store>, depth: usize) -> Arc<SharedReads> {
    let options = ReadOptions { depth, ..ReadOptions::default() };
    Arc::new(SharedReads::new(Arc::clone(store), &options, Checks::Done))
}

fn submit(shared: &SharedReads, extents: &[Extent], class: ReadClass) {
    for (tag, extent) in (0..).zip(extents) {
        shared.submit(ReadRequest { tag, extent: extent.clone(), class });
    }
}

fn next(shared: &SharedReads) -> ReadDone {
    shuttle::future::block_on(poll_fn(|context| shared.poll_next(context)))
}

fn expect(shared: &SharedReads, done: &ReadDone, extents: &[Extent]) {
    let expected = shared.store().read_extent_vec(&extents[done.tag as usize]).unwrap();
    assert!(done.result.as_ref().unwrap().as_ref() == expected);
}

fn readers(shared: &Arc<SharedReads>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let spawn = |_| {
        let shared = Arc::clone(shared);
        thread::spawn(move || read_until_closed(&shared, ThreadStaging::default()))
    };
    (0..count).map(spawn).collect()
}

#[test]
fn every_read_ends_once_whoever_reads_it() {
    let (store, extents) = stored();
    check(move || {
        let shared = shared(&store, 2);
        let readers = readers(&shared, 2);
        submit(&shared, &extents[..2], ReadClass::Idle);
        shared.promote(1);
        let late = {
            let (shared, extents) = (Arc::clone(&shared), extents.clone());
            thread::spawn(move || {
                for (tag, extent) in (2..).zip(&extents[2..]) {
                    let class = ReadClass::Urgent;
                    shared.submit(ReadRequest { tag, extent: extent.clone(), class });
                }
            })
        };
        let mut seen = [false; 4];
        for _ in 0..4 {
            let done = next(&shared);
            expect(&shared, &done, &extents);
            assert!(!std::mem::replace(&mut seen[done.tag as usize], true), "{} twice", done.tag);
        }
        late.join().unwrap();
        assert_eq!(shared.outstanding(), 0);
        shared.close();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(shared.try_next().is_none());
    });
}

#[test]
fn what_is_withdrawn_never_ends_and_all_else_does() {
    let (store, extents) = stored();
    check(move || {
        let shared = shared(&store, 1);
        let readers = readers(&shared, 1);
        submit(&shared, &extents, ReadClass::Idle);
        let withdrawn = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || (0..4).filter(|tag| shared.withdraw(*tag)).collect::<Vec<u64>>())
        };
        let withdrawn = withdrawn.join().unwrap();
        let mut left: Vec<u64> = (0..4).filter(|tag| !withdrawn.contains(tag)).collect();
        while !left.is_empty() {
            let done = next(&shared);
            expect(&shared, &done, &extents);
            let at = left.iter().position(|tag| *tag == done.tag);
            left.remove(at.expect("neither withdrawn nor seen"));
        }
        assert_eq!(shared.outstanding(), 0);
        shared.close();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_read_that_is_given_up_while_it_ends_is_told_of_once() {
    let (store, extents) = stored();
    check(move || {
        let shared = shared(&store, 2);
        let readers = readers(&shared, 2);
        submit(&shared, &extents, ReadClass::Urgent);
        let watch = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // All running reads count as stalled.
                let stalled = shared.lock().take_stalled(shared.now_ns() + 1, 0, false);
                shared.give_up(&stalled, |job| stall(&shared, job, Duration::ZERO));
                stalled.len() as u64
            })
        };
        let mut seen = [false; 4];
        let mut errors = 0;
        for _ in 0..4 {
            let done = next(&shared);
            assert!(!std::mem::replace(&mut seen[done.tag as usize], true), "{} twice", done.tag);
            match done.result {
                Ok(_) => expect(&shared, &done, &extents),
                Err(_) => errors += 1,
            }
        }
        assert_eq!(watch.join().unwrap(), errors);
        shared.close();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(shared.try_next().is_none() && shared.outstanding() == 0);
        let counters = shared.counters();
        assert_eq!((counters.reads, counters.errors), (4, errors));
    });
}

#[test]
fn closing_ends_readers_wherever_they_are() {
    let (store, extents) = stored();
    check(move || {
        let shared = shared(&store, 2);
        let readers = readers(&shared, 3);
        submit(&shared, &extents, ReadClass::Urgent);
        shared.close();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(shared.lock().running.is_empty());
        std::iter::from_fn(|| shared.try_next()).for_each(|done| expect(&shared, &done, &extents));
        assert_eq!(shared.outstanding(), 0);
    });
}

/// Slab buffers, which share huge pages, and small buffers. Lent buffers keep their contents while others are
/// released, and all bytes are counted at the end.
#[test]
fn lent_buffers_keep_their_bytes_while_others_are_given_back() {
    check(|| {
        let pool = Arc::new(BufferPool::new(1 << 20));
        let threads: Vec<_> = (1..=3u8)
            .map(|number| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    for size in [700_000, 2 * PAGE_BYTES, 700_000] {
                        let mut buffer = pool.take(size).unwrap();
                        let bytes = buffer.bytes_mut();
                        let last = bytes.len() - 1;
                        // One byte per page, so that a released page is detected.
                        bytes.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = number);
                        bytes[last] = number;
                        match number {
                            1 => pool.trim(),
                            2 => pool.set_limit(0),
                            _ => pool.set_total(3 << 20),
                        }
                        let bytes = buffer.bytes();
                        let mut pages = bytes.iter().step_by(PAGE_BYTES);
                        assert!(pages.all(|byte| *byte == number) && bytes[last] == number);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pool.bytes().0, 0);
        pool.set_total(0);
        pool.trim();
        assert_eq!(pool.bytes(), (0, 0));
    });
}
