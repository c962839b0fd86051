//! What all requests share: the model, who may ask, and how much at a time.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use nestling::Model;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::sessions::IdleSessions;

/// What a server allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Who may ask.
    pub access: Access,
    /// Most answers to one prompt (`n`).
    pub choices_max: usize,
    /// Most requests that generate at a time; more are told to come back.
    pub requests_max: usize,
    /// Most sessions that are kept for requests that go on from them.
    pub idle_sessions_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let access = Access::default();
        Self { access, choices_max: 8, requests_max: 256, idle_sessions_max: 16 }
    }
}

/// A server, before and after its model is there. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ServerOptions,
    served: OnceLock<Arc<Served>>,
}

/// The model that is served.
#[derive(Debug)]
pub(crate) struct Served {
    pub model: Model,
    /// What clients call it.
    pub id: String,
    /// When it was there, in seconds since 1970.
    pub created: u64,
    /// Changes whenever the same request may be answered otherwise.
    pub fingerprint: String,
    pub idle: IdleSessions,
    pub requests: Arc<Semaphore>,
    pub choices_max: usize,
    pub metrics: Metrics,
}

impl Server {
    /// A server that tells everybody that its model is being loaded.
    pub fn new(options: ServerOptions) -> Self {
        Self { inner: Arc::new(Inner { options, served: OnceLock::new() }) }
    }

    /// From now on `model` answers, under the name `id`. A second one is not taken.
    pub fn set_model(&self, model: Model, id: impl Into<String>) {
        let options = &self.inner.options;
        let id = id.into();
        let served = Served {
            fingerprint: fingerprint(&model, &id),
            model,
            id,
            created: unix_seconds(),
            idle: IdleSessions::new(options.idle_sessions_max),
            requests: Arc::new(Semaphore::new(options.requests_max.max(1))),
            choices_max: options.choices_max.max(1),
            metrics: Metrics::default(),
        };
        if self.inner.served.set(Arc::new(served)).is_err() {
            tracing::warn!("the server has a model already");
        }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.inner.options.access
    }

    /// # Errors
    /// [`ApiError::loading`].
    pub(crate) fn served(&self) -> Result<&Arc<Served>, ApiError> {
        self.inner.served.get().ok_or_else(ApiError::loading)
    }
}

pub(crate) fn unix_seconds() -> u64 {
    // Default: a clock before 1970 tells nothing.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What decides how a request is answered, besides the request.
fn fingerprint(model: &Model, id: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (limits, device) = (model.limits(), model.device_name());
    let allocation = model.allocation().map(|levels| levels.hash().to_string());
    let dual = model.dual().map(|dual| dual.policy());
    let facts = format!(
        "{version} {id} {device} {:?} {} {allocation:?} {dual:?}",
        limits.level_max, limits.vocab_size
    );
    let hash: [u8; 32] = Sha256::digest(facts).into();
    let start = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("fp_{start}")
}
