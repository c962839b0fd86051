//! The group itself.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nestling_core::error::ErrorClass;
use nestling_core::group::{Failure, Group, GroupCounters, LossCause, RankError};
use nestling_ranks::QueueGroup;

use crate::harness::watched;

fn failure(reason: &str) -> Failure {
    Failure { reason: reason.into(), class: ErrorClass::Source, needs_reopening: false }
}

/// Runs `work` on each rank of a group, and returns the results.
fn on_all<T: Send + 'static>(
    ranks: usize,
    timeout: Duration,
    work: impl Fn(&QueueGroup) -> T + Send + Sync + 'static,
) -> Vec<T> {
    watched(move || {
        let work = Arc::new(work);
        let run = |rank: QueueGroup| {
            let work = Arc::clone(&work);
            thread::spawn(move || work(&rank))
        };
        let threads: Vec<_> = QueueGroup::of_threads(ranks, timeout).into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn parts_arrive_from_each_rank_in_order() {
    let results = on_all(4, LONG, |group| {
        let (own, mut incoming) = (group.share().rank as u8, Vec::new());
        for round in 0..50 {
            let parts: Vec<Vec<u8>> = (0..4).map(|to| vec![own, to, round]).collect();
            group.exchange(&parts, &mut incoming).unwrap();
            for (from, part) in (0..).zip(&incoming) {
                assert_eq!(part, &[from, own, round]);
            }
            group.all_gather(&[own; 3], &mut incoming).unwrap();
            assert!((0..).zip(&incoming).all(|(from, part)| part == &[from; 3]));
            let told = if own == 0 { vec![round; 7] } else { Vec::new() };
            assert_eq!(group.broadcast(&told).unwrap(), [round; 7]);
        }
        group.counters()
    });
    // 50 rounds of an exchange of 3 bytes and a gather of 3, each with 3 other ranks.
    let counters = |messages, sent_bytes| GroupCounters {
        exchanges: 100,
        messages,
        sent_bytes,
        received_bytes: 900,
    };
    assert_eq!(results[0], counters(450, 900 + 50 * 3 * 7));
    assert_eq!(results[3], counters(300, 900));
}

#[test]
fn a_failure_ends_the_same_exchange_on_all_ranks_and_leaves_the_group_usable() {
    let results = on_all(3, LONG, |group| {
        let (own, mut incoming) = (group.share().rank, Vec::new());
        group.all_gather(&[1], &mut incoming).unwrap();
        let ended = match own {
            1 => group.fail(&failure("no disk")),
            _ => group.all_gather(&[2], &mut incoming),
        };
        group.all_gather(&[3], &mut incoming).unwrap();
        assert_eq!(incoming, [[3], [3], [3]]);
        ended
    });
    let failed = RankError::Failed { rank: 1, failure: failure("no disk") };
    assert_eq!(results, [Err(failed.clone()), Ok(()), Err(failed)]);
}

#[test]
fn an_ended_rank_is_lost_at_once_and_a_silent_one_after_the_timeout() {
    for (timeout, stall) in [(LONG, None), (Duration::from_secs(3), Some(9000))] {
        let started = Instant::now();
        let results = on_all(3, timeout, move |group| {
            let (own, mut incoming) = (group.share().rank, Vec::new());
            group.all_gather(&[1], &mut incoming)?;
            match (own, stall) {
                (2, None) => return Ok(()),
                (2, Some(millis)) => thread::sleep(Duration::from_millis(millis)),
                _ => {}
            }
            group.all_gather(&[2], &mut incoming)
        });
        assert!(started.elapsed() < Duration::from_secs(50));
        for error in &results[..2] {
            let Err(RankError::Lost { rank: 2, cause }) = error else { panic!("{error:?}") };
            let is_expected = match stall {
                None => *cause == LossCause::Ended,
                Some(_) => matches!(cause, LossCause::Silent(_)),
            };
            assert!(is_expected || *cause == LossCause::Reported, "{cause:?}");
        }
        assert_eq!(results[2].is_ok(), stall.is_none(), "{:?}", results[2]);
    }
}
