//! The one model of a server that does not serve several, and its reopening after its file changed.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nestling::CancelToken;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::limits::LOAD_TIME;
use crate::served::{Served, ServedOptions};
use crate::source::{OpenModelError, OpenedModel};

/// Interval between checks whether the last request of a stale model has ended.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Opens a server's only model again. Called on a thread that may block, once at a time.
pub type Reopen =
    Arc<dyn Fn(&CancelToken) -> Result<OpenedModel, OpenModelError> + Send + Sync + 'static>;

/// Clones are the same model.
#[derive(Clone)]
pub(crate) struct Lone {
    inner: Arc<Inner>,
}

struct Inner {
    /// None while the model is reopened, and after that failed.
    served: RwLock<Option<Arc<Served>>>,
    id: String,
    options: ServedOptions,
    reopen: Option<Reopen>,
    /// Held while the model is reopened.
    turn: Arc<Mutex<()>>,
}

impl Lone {
    pub fn new(served: Served, options: ServedOptions, reopen: Option<Reopen>) -> Self {
        let id = served.id.clone();
        let served = RwLock::new(Some(Arc::new(served)));
        Self { inner: Arc::new(Inner { served, id, options, reopen, turn: Arc::default() }) }
    }

    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Returns the open model, stale or not.
    ///
    /// # Errors
    /// [`ApiError::loading`] while it is being reopened and after that failed.
    pub fn current(&self) -> Result<Arc<Served>, ApiError> {
        self.inner.current().ok_or_else(ApiError::loading)
    }

    /// Fails if no request can succeed before somebody restarts the server, or before the model is reopened.
    ///
    /// # Errors
    /// [`ApiError::loading`] without an open model; [`ApiError::stale`] if the model cannot be reopened.
    pub fn health(&self) -> Result<(), ApiError> {
        let served = self.current()?;
        match served.is_stale() && self.inner.reopen.is_none() {
            true => Err(ApiError::stale(&served.id)),
            false => Ok(()),
        }
    }

    /// Returns the model for a request, reopened if it is stale. Without [`Reopen`] a stale model is returned as it is.
    ///
    /// # Errors
    /// [`ApiError::not_opened`]; [`ApiError::busy`] if requests keep the stale model open for too long.
    pub async fn ready(&self) -> Result<Arc<Served>, ApiError> {
        if let Some(served) = self.inner.usable() {
            return Ok(served);
        }
        // A task of its own: a request that goes away does not interrupt the reopening.
        let inner = Arc::clone(&self.inner);
        let reopened = tokio::spawn(async move { inner.reopened().await }).await;
        reopened.map_err(|_| ApiError::internal("reopening the model panicked"))?
    }
}

impl fmt::Debug for Lone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lone").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Inner {
    fn current(&self) -> Option<Arc<Served>> {
        // A whole option is whole after a panic.
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn usable(&self) -> Option<Arc<Served>> {
        self.current().filter(|served| !served.is_stale() || self.reopen.is_none())
    }

    fn set(&self, served: Option<Arc<Served>>) -> Option<Arc<Served>> {
        let mut place = self.served.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, served)
    }

    async fn reopened(&self) -> Result<Arc<Served>, ApiError> {
        let _turn = self.turn.lock().await;
        if let Some(served) = self.usable() {
            return Ok(served);
        }
        let Some(reopen) = self.reopen.clone() else { return Err(ApiError::loading()) };
        let metrics = match self.set(None) {
            Some(mut old) => {
                let end = Instant::now() + LOAD_TIME;
                // The memory of the old model must be free before more is taken.
                while Arc::get_mut(&mut old).is_none() {
                    if Instant::now() >= end {
                        self.set(Some(old));
                        return Err(ApiError::busy("requests keep an outdated model open"));
                    }
                    sleep(LOOK_EVERY).await;
                }
                let metrics = Arc::clone(&old.metrics);
                blocking(move || drop(old)).await?;
                metrics
            }
            // Default: an earlier attempt failed, and its counters are gone with the model.
            None => Arc::default(),
        };
        let opened = blocking(move || reopen(&CancelToken::new())).await?;
        let opened = opened.map_err(|error| ApiError::not_opened(&self.id, &error.message))?;
        let OpenedModel { model, hold } = opened;
        tracing::info!("the model was reopened");
        let served = Served::new(model, self.id.clone(), &self.options, metrics, Some(hold), false);
        let served = Arc::new(served);
        self.set(Some(Arc::clone(&served)));
        Ok(served)
    }
}
