use std::path::PathBuf;

use super::*;

fn model() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest").into()
}

fn start() -> Worker {
    Worker::start(Settings { max_tokens: 400, greedy: true, predict: false }, || {}).unwrap()
}

fn open(worker: &mut Worker, cancel: CancelToken) {
    worker.send(Command::Plan { path: model(), budget: None });
    worker.send(Command::Open { path: model(), budget: 40_000_000, cancel });
}

/// Waits for a report that `wanted` accepts, and returns what it made of it.
fn wait_for<T>(worker: &Worker, wanted: impl Fn(Report) -> Option<T>) -> T {
    loop {
        let report = worker.wait(Duration::from_secs(60)).unwrap().expect("a report in time");
        if let Some(found) = wanted(report) {
            return found;
        }
    }
}

fn opened(report: Report) -> Option<()> {
    matches!(report, Report::Opened(_)).then_some(())
}

fn text(report: Report) -> Option<()> {
    matches!(report, Report::Text(_)).then_some(())
}

#[test]
fn an_answer_stops_and_another_one_follows() {
    let mut worker = start();
    open(&mut worker, CancelToken::new());
    wait_for(&worker, opened);
    for _ in 0..2 {
        worker.send(Command::Send("Tell me a story about a ship.".into()));
        wait_for(&worker, text);
        worker.send(Command::Stop);
        let finished = wait_for(&worker, |report| match report {
            Report::Finished(finished) => Some(finished),
            _ => None,
        });
        assert!(finished.was_stopped && finished.answer_tokens < 400, "{finished:?}");
    }
}

#[test]
fn budgets_are_refused_with_the_one_in_force() {
    let mut worker = start();
    open(&mut worker, CancelToken::new());
    wait_for(&worker, opened);
    worker.send(Command::SetBudget(1));
    let in_force = wait_for(&worker, |report| match report {
        Report::BudgetRefused { in_force, .. } => Some(in_force),
        _ => None,
    });
    assert_eq!(in_force, 40_000_000);
    // A slider sends many budgets, and the last one counts.
    for bytes in (20_000_000..=30_000_000).rev().step_by(1_000_000) {
        worker.send(Command::SetBudget(bytes));
    }
    wait_for(&worker, |report| matches!(report, Report::BudgetSet(20_000_000)).then_some(()));
}

#[test]
fn a_cancelled_opening_reports_no_error() {
    let mut worker = start();
    let cancel = CancelToken::new();
    cancel.cancel();
    open(&mut worker, cancel);
    let reason = wait_for(&worker, |report| match report {
        Report::OpenFailed(reason) => Some(reason),
        _ => None,
    });
    assert_eq!(reason, None);
}

#[test]
fn the_thread_ends_with_its_handle() {
    let mut worker = start();
    open(&mut worker, CancelToken::new());
    worker.send(Command::Send("Tell me a story about a ship.".into()));
    wait_for(&worker, text);
    let started = std::time::Instant::now();
    drop(worker);
    assert!(started.elapsed() < Duration::from_secs(10));
}
