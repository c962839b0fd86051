//! Sessions at rest, kept for the requests that go on from them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nestling::{EngineError, Model, Session};

/// Fewest tokens for which a second session with the same start is better than a new one.
const SHARED_MIN: usize = 8;

/// The sessions that ended last. They lose their keys and values where others want the room.
#[derive(Debug)]
pub(crate) struct IdleSessions {
    count_max: usize,
    /// The one that was used last at the end.
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    session: Session,
    tokens: Vec<u32>,
    /// Only requests with the same salt go on from it.
    salt: Option<String>,
}

impl IdleSessions {
    pub fn new(count_max: usize) -> Self {
        Self { count_max, idle: Mutex::default() }
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// A session that holds as much as possible of a prompt's start: one that the prompt goes on from, or another one
    /// that shares what was computed, or a new one. Those with another salt are nobody's to look at.
    pub fn session_for(&self, model: &Model, prompt: &[u32], salt: Option<&str>) -> Session {
        let mut idle = self.lock();
        let shared = |idle: &Idle| match idle.salt.as_deref() == salt {
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
        // Default: one that cannot be shared is as good as none.
        fork.unwrap_or_else(|_| model.session())
    }

    /// Keeps a session whose generation has ended. Waits, at most a layer, for one that was cancelled.
    ///
    /// # Errors
    /// What keeps its history from being read.
    pub fn keep(&self, session: Session, salt: Option<String>) -> Result<(), EngineError> {
        let tokens = session.tokens()?;
        let mut idle = self.lock();
        // What goes on from these can go on from the new one.
        idle.retain(|idle| idle.salt != salt || !tokens.starts_with(&idle.tokens));
        idle.push(Idle { session, tokens, salt });
        let over = idle.len().saturating_sub(self.count_max);
        let gone: Vec<Idle> = idle.drain(..over).collect();
        drop(idle);
        drop(gone);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        // A list of whole entries is whole after a panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shared_start(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|pair| pair.0 == pair.1).count()
}
