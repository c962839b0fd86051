//! Tests of sequences.

use super::{Sequence, SequencePool};
use nestling_core::error::EngineError;

#[test]
fn replacing_keeps_what_is_the_same() {
    let pool = SequencePool::new(4, 0);
    let mut sequence = Sequence::new(pool.clone());
    sequence.extend(&[1, 2, 3, 4]).unwrap();
    sequence.advance(4).unwrap();
    sequence.replace(vec![1, 2, 9, 9, 9]);
    assert_eq!((sequence.computed(), sequence.pending()), (2, &[9, 9, 9][..]));
    sequence.truncate(1);
    assert_eq!((sequence.computed(), sequence.tokens()), (1, &[1][..]));
    drop(sequence);
    assert_eq!(pool.free_pages(), 4);
}

#[test]
fn a_fork_shares_pages_and_gives_back_its_own() {
    let pool = SequencePool::new(4, 0);
    let mut first = Sequence::new(pool.clone());
    first.extend(&[7; 70]).unwrap();
    first.advance(70).unwrap();
    let mut second = first.fork().unwrap();
    assert_eq!(pool.free_pages(), 2);
    second.push(8);
    let copy = second.advance(1).unwrap().copy.unwrap();
    assert_eq!(pool.free_pages(), 1);
    drop(first);
    assert_eq!(pool.free_pages(), 1, "the page is not free before it is copied");
    assert_eq!(pool.lock().pages.references(copy.source), 1);
    second.keep_computed();
    assert_eq!(pool.free_pages(), 2);
    drop(second);
    assert_eq!(pool.free_pages(), 4);
}

#[test]
fn without_a_state_of_its_position_a_recurrent_sequence_falls_back() {
    let pool = SequencePool::new(8, 4);
    let mut sequence = Sequence::new(pool.clone());
    sequence.extend(&[7; 100]).unwrap();
    sequence.advance(100).unwrap();
    for _ in 0..5 {
        sequence.push(8);
        sequence.advance(1).unwrap();
    }
    let mut other = sequence.fork().unwrap();
    sequence.truncate(104);
    assert_eq!(sequence.computed(), 104, "the state before the last step is there");
    other.truncate(103);
    assert_eq!((other.computed(), other.pending().len()), (64, 39));
    other.truncate(30);
    assert_eq!(other.computed(), 0);
    drop((sequence, other));
    assert_eq!((pool.free_pages(), pool.free_states()), (8, 4));
}

#[test]
fn without_pages_no_state_is_taken() {
    let pool = SequencePool::new(2, 4);
    let mut sequence = Sequence::new(pool.clone());
    sequence.extend(&[7; 200]).unwrap();
    sequence.advance(100).unwrap();
    let held = pool.free_states();
    assert!(matches!(sequence.advance(100), Err(EngineError::OutOfPages { pages: 2 })));
    assert_eq!((sequence.computed(), pool.free_states()), (100, held));
}

#[test]
fn of_counts_that_somebody_panicked_over_nothing_is_taken() {
    let pool = SequencePool::new(4, 0);
    let mut sequence = Sequence::new(pool.clone());
    sequence.extend(&[7; 10]).unwrap();
    sequence.advance(5).unwrap();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let _held = pool.lock();
            panic!("as asked");
        });
        assert!(work.join().is_err());
    });
    assert!(matches!(sequence.advance(5), Err(EngineError::Panicked { .. })));
    sequence.truncate(1);
    drop(sequence);
    assert_eq!(pool.free_pages(), 4);
}
