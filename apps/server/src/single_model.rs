//! The model of a single-model server, and its reopening after its file changed.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nestling::CancelToken;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::limits::LOAD_TIME;
use crate::served_model::{ServedModel, ServedOptions};
use crate::source::{OpenModelError, OpenedModel};

/// Interval between checks whether the last request of a stale model has ended.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Function that reopens the model of a single-model server. Calls may block and never overlap.
pub type Reopen =
    Arc<dyn Fn(&CancelToken) -> Result<OpenedModel, OpenModelError> + Send + Sync + 'static>;

/// Shared handle of the model. Clones refer to the same model.
#[derive(Clone)]
pub(crate) struct SingleModel {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None` while the model is being reopened and after a failed attempt.
    served: RwLock<Option<Arc<ServedModel>>>,
    id: String,
    options: ServedOptions,
    reopen: Option<Reopen>,
    /// Mutex held while the model is being reopened.
    turn: Arc<Mutex<()>>,
}

impl SingleModel {
    pub fn new(served: ServedModel, options: ServedOptions, reopen: Option<Reopen>) -> Self {
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
    /// [`ApiError::loading`] while the model is being reopened and after a failed attempt.
    pub fn current(&self) -> Result<Arc<ServedModel>, ApiError> {
        self.inner.current().ok_or_else(ApiError::loading)
    }

    /// Fails if no request can succeed before the server is restarted or the model is reopened.
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

    /// Returns the model for a request, reopened if it is stale. Without [`Reopen`] a stale model is returned
    /// as it is.
    ///
    /// # Errors
    /// [`ApiError::not_opened`]; [`ApiError::busy`] if requests keep the stale model open for too long.
    pub async fn ready(&self) -> Result<Arc<ServedModel>, ApiError> {
        if let Some(served) = self.inner.usable() {
            return Ok(served);
        }
        // A separate task: the reopening continues if its request is cancelled.
        let inner = Arc::clone(&self.inner);
        let reopened = tokio::spawn(async move { inner.reopened().await }).await;
        reopened.map_err(|_| ApiError::internal("reopening the model panicked"))?
    }
}

impl fmt::Debug for SingleModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lone").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Inner {
    fn current(&self) -> Option<Arc<ServedModel>> {
        // A panic cannot leave the option in an inconsistent state.
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn usable(&self) -> Option<Arc<ServedModel>> {
        self.current().filter(|served| !served.is_stale() || self.reopen.is_none())
    }

    fn set(&self, served: Option<Arc<ServedModel>>) -> Option<Arc<ServedModel>> {
        let mut place = self.served.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, served)
    }

    async fn reopened(&self) -> Result<Arc<ServedModel>, ApiError> {
        let _turn = self.turn.lock().await;
        if let Some(served) = self.usable() {
            return Ok(served);
        }
        let Some(reopen) = self.reopen.clone() else { return Err(ApiError::loading()) };
        let metrics = match self.set(None) {
            Some(mut old) => {
                let end = Instant::now() + LOAD_TIME;
                // The memory of the old model must be released before the new one reserves its own.
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
            // Default: after a failed attempt the counters are gone with the model.
            None => Arc::default(),
        };
        let opened = blocking(move || reopen(&CancelToken::new())).await?;
        let opened = opened.map_err(|error| ApiError::not_opened(&self.id, &error.message))?;
        let OpenedModel { model, hold } = opened;
        tracing::info!("the model was reopened");
        let served =
            ServedModel::new(model, self.id.clone(), &self.options, metrics, Some(hold), false);
        let served = Arc::new(served);
        self.set(Some(Arc::clone(&served)));
        Ok(served)
    }
}
