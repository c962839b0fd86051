//! Reader thread: performs one read at a time.

use super::fetch::fetch_staged;
use super::shared::SharedReads;
use super::thread_staging::ThreadStaging;

use nestling_core::sync::whole;

/// Performs queued reads until the queue is closed.
pub(super) fn read_until_closed(shared: &SharedReads, mut staging: ThreadStaging) {
    let mut state = shared.lock();
    while !state.closing {
        let Some(job) = shared.start(&mut state) else {
            state = whole(shared.work.wait(state));
            continue;
        };
        if state.queue.len() > 0 {
            shared.work.notify_one();
        }
        drop(state);
        let result = fetch_staged(shared, &job, &mut staging);
        shared.finish(&job, result);
        state = shared.lock();
    }
}
