//! A served model and the state shared by its requests.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::response::Response;
use nestling::engine::text::ToolStyle;
use nestling::{EngineError, ErrorClass, Model};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::field_path::IgnoredFields;
use crate::limits::{READ_WAIT, READERS_MAX};
use crate::metrics::Metrics;
use crate::response_store::ResponseStore;
use crate::sessions::IdleSessions;

#[derive(Clone, Debug)]
pub(crate) struct ServedOptions {
    pub tool_style: ToolStyle,
    pub choices_max: usize,
    pub requests_max: usize,
    pub idle_sessions_max: usize,
    pub write_time: Duration,
    pub responses: Arc<ResponseStore>,
}

pub(crate) struct ServedModel {
    pub model: Model,
    /// Model name used by clients.
    pub id: String,
    /// Load time in seconds since 1970.
    pub created: u64,
    /// Fingerprint that changes whenever the same request may get a different response.
    pub fingerprint: String,
    pub idle: IdleSessions,
    pub requests: Arc<Semaphore>,
    /// Limits the number of requests parsed concurrently.
    readers: Arc<Semaphore>,
    pub choices_max: usize,
    pub tool_style: ToolStyle,
    /// Maximum time that a client may stall reading.
    pub write_time: Duration,
    /// Upper limit of the memory budget in bytes: the budget at server start. `None` for a model of a pool,
    /// whose accounting relies on the budget at load time.
    pub memory_max: Option<u64>,
    pub metrics: Arc<Metrics>,
    /// Stored responses of the server.
    pub responses: Arc<ResponseStore>,
    /// True if no request can succeed before the model is reopened.
    stale: AtomicBool,
    /// Resources that must outlive the model.
    _hold: Option<Box<dyn Any + Send + Sync>>,
}

impl ServedModel {
    pub fn new(
        model: Model,
        id: String,
        options: &ServedOptions,
        metrics: Arc<Metrics>,
        hold: Option<Box<dyn Any + Send + Sync>>,
        shares_memory: bool,
    ) -> Self {
        Self {
            fingerprint: fingerprint(&model, &id),
            memory_max: model.engine().budget().total_bytes().filter(|_| !shares_memory),
            model,
            id,
            created: unix_seconds(),
            idle: IdleSessions::new(options.idle_sessions_max),
            requests: Arc::new(Semaphore::new(options.requests_max.max(1))),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            choices_max: options.choices_max.max(1),
            tool_style: options.tool_style,
            write_time: options.write_time,
            metrics,
            responses: Arc::clone(&options.responses),
            stale: AtomicBool::new(false),
            _hold: hold,
        }
    }

    /// Parses a request and compiles its schemas on a thread that may block. Parsing occupies the request's
    /// slot, even after the client has disconnected.
    ///
    /// Returns the parsed request and its slot, so that the request never ceases to count before it ends.
    ///
    /// # Errors
    /// Returns the error of `read`, or [`ApiError::busy`] if too many requests are in progress or are being
    /// parsed.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, OwnedSemaphorePermit), ApiError> {
        let slot = Arc::clone(&self.requests).try_acquire_owned();
        let slot = slot.map_err(|_| ApiError::busy("too many requests are under way"))?;
        let place = Arc::clone(&self.readers).acquire_owned();
        let busy = || ApiError::busy("too many requests are being parsed");
        let place = tokio::time::timeout(READ_WAIT, place).await.map_err(|_| busy())?;
        let served = Arc::clone(self);
        blocking(move || {
            let _place = place;
            Ok((read(&served)?, slot))
        })
        .await?
    }

    /// Returns whether conversations may have tools.
    pub fn takes_tools(&self) -> bool {
        let can = self.model.capabilities();
        can.tools || (can.chat && self.tool_style == ToolStyle::Generic)
    }

    /// Counts an error of the engine and returns the error for the client. Marks the model as stale if only
    /// reopening helps.
    pub fn refused(&self, error: EngineError, param: &'static str) -> ApiError {
        self.metrics.failed(&error);
        if error.needs_reopening() && !self.stale.swap(true, Ordering::Relaxed) {
            tracing::warn!("{} must be reopened: {error}", self.id);
        } else if matches!(error.class(), ErrorClass::Source | ErrorClass::Broken) {
            // The error names a path, which clients must not see.
            tracing::warn!("a request to {} failed: {error}", self.id);
        }
        ApiError::engine(error, param)
    }

    /// Reports the fields of a request that had no effect: to the client, in the log, and in the metrics.
    pub fn report(&self, ignored: &IgnoredFields, response: &mut Response) {
        let names = ignored.report(response);
        if !names.is_empty() {
            tracing::debug!("fields without effect: {}", names.join(", "));
            self.metrics.ignored(names.len());
        }
    }

    /// Returns true if no request can succeed before the model is reopened. The reason is a changed file, or
    /// a failed step or device.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Returns the memory reserved by the engine in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.model.engine().budget().used_bytes()
    }
}

impl fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("id", &self.id).finish_non_exhaustive()
    }
}

pub(crate) fn unix_seconds() -> u64 {
    // Default: 0 for a clock before 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns a hash of all inputs, besides the request, that determine a response.
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
