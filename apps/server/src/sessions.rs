//! Idle sessions, kept for follow-up requests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nestling::{EngineError, Model, Session};

/// Minimum number of shared tokens for which forking an idle session pays off.
const SHARED_MIN: usize = 8;

/// The sessions that ended most recently. Their KV pages are evicted under memory pressure.
#[derive(Debug)]
pub(crate) struct IdleSessions {
    count_max: usize,
    /// Sessions in order of use, most recent last.
    idle: Mutex<Vec<IdleSession>>,
}

#[derive(Debug)]
struct IdleSession {
    session: Session,
    tokens: Vec<u32>,
    /// Salt that a request needs to reuse the session.
    salt: Option<String>,
}

impl IdleSessions {
    pub fn new(count_max: usize) -> Self {
        Self { count_max, idle: Mutex::default() }
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns a session that holds the longest available prefix of the prompt. It is an idle session that
    /// the prompt extends, a fork of an idle session, or a new one. Sessions with another salt are skipped.
    pub fn session_for(&self, model: &Model, prompt: &[u32], salt: Option<&str>) -> Session {
        let mut idle = self.lock();
        let shared = |idle: &IdleSession| match idle.salt.as_deref() == salt {
            true => shared_start(&idle.tokens, prompt),
            false => 0,
        };
        let best = idle.iter().map(shared).enumerate().max_by_key(|(_, shared)| *shared);
        let Some((index, shared)) = best.filter(|(_, shared)| *shared >= SHARED_MIN) else {
            return model.session();
        };
        let found = idle.remove(index);
        if shared == found.tokens.len() {
            return found.session;
        }
        let fork = found.session.fork();
        idle.push(found);
        // Default: a session that cannot be forked is replaced with a new one.
        fork.unwrap_or_else(|_| model.session())
    }

    /// Keeps a session whose generation has ended. Blocks for at most one layer after a cancellation.
    ///
    /// # Errors
    /// Returns an error if the history of the session cannot be read.
    pub fn keep(&self, session: Session, salt: Option<String>) -> Result<(), EngineError> {
        let tokens = session.tokens()?;
        let mut idle = self.lock();
        // Sessions whose history is a prefix of the new one are redundant.
        idle.retain(|idle| idle.salt != salt || !tokens.starts_with(&idle.tokens));
        idle.push(IdleSession { session, tokens, salt });
        let over = idle.len().saturating_sub(self.count_max);
        let gone: Vec<IdleSession> = idle.drain(..over).collect();
        drop(idle);
        drop(gone);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<IdleSession>> {
        // A panic cannot leave the list in an inconsistent state.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shared_start(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|pair| pair.0 == pair.1).count()
}
