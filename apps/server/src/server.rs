//! What all requests share: the model, who may ask, and how much at a time.

use std::sync::{Arc, OnceLock};

use nestling::Model;

use crate::access::Access;
use crate::body::BodyBudget;
use crate::error::ApiError;
use crate::limits::ConnectionLimits;
use crate::lone::{Lone, Reopen};
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::served::ServedOptions;
use crate::source::{ModelSource, OpenedModel, PoolOptions};

pub(crate) use crate::served::{Served, unix_seconds};

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
    /// What a connection may take.
    pub connections: ConnectionLimits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            access: Access::default(),
            choices_max: 8,
            requests_max: 256,
            idle_sessions_max: 16,
            connections: ConnectionLimits::default(),
        }
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
    models: OnceLock<Models>,
    bodies: BodyBudget,
}

/// What answers.
#[derive(Debug)]
pub(crate) enum Models {
    /// One model.
    One(Lone),
    /// Those of a source, as they are asked for.
    Pool(Pool),
}

impl Server {
    /// A server that tells everybody that its model is being loaded.
    pub fn new(options: ServerOptions) -> Self {
        let bodies = BodyBudget::new(options.connections.bodies_bytes_max);
        Self { inner: Arc::new(Inner { options, models: OnceLock::new(), bodies }) }
    }

    /// From now on `model` answers, under the name `id`. A second one is not taken.
    pub fn set_model(&self, model: Model, id: impl Into<String>) {
        let metrics = Arc::new(Metrics::default());
        let options = self.served_options();
        let served = Served::new(model, id.into(), &options, metrics, None, false);
        self.set(Models::One(Lone::new(served, options, None)));
    }

    /// Serves `opened` under the name `id`. If its file changes while it is open, it is closed and the next request opens
    /// it again with `reopen`. A second model is ignored.
    pub fn set_reopenable_model(&self, opened: OpenedModel, id: impl Into<String>, reopen: Reopen) {
        let (metrics, options) = (Arc::new(Metrics::default()), self.served_options());
        let OpenedModel { model, hold } = opened;
        let served = Served::new(model, id.into(), &options, metrics, Some(hold), false);
        self.set(Models::One(Lone::new(served, options, Some(reopen))));
    }

    /// From now on the models of `source` answer: each is opened when a request names it. A second source, or one beside
    /// [`Self::set_model`], is not taken.
    pub fn set_source(&self, source: Arc<dyn ModelSource>, options: PoolOptions) {
        self.set(Models::Pool(Pool::new(source, options, self.served_options())));
    }

    fn set(&self, models: Models) {
        if self.inner.models.set(models).is_err() {
            tracing::warn!("the server has a model already");
        }
    }

    fn served_options(&self) -> ServedOptions {
        let options = &self.inner.options;
        ServedOptions {
            choices_max: options.choices_max,
            requests_max: options.requests_max,
            idle_sessions_max: options.idle_sessions_max,
            write_time: options.connections.write_time,
        }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.inner.options.access
    }

    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.inner.bodies
    }

    pub(crate) fn connection_limits(&self) -> &ConnectionLimits {
        &self.inner.options.connections
    }

    /// What answers.
    ///
    /// # Errors
    /// [`ApiError::loading`].
    pub(crate) fn models(&self) -> Result<&Models, ApiError> {
        self.inner.models.get().ok_or_else(ApiError::loading)
    }

    /// The model for a request that names one. A model that is always open is given whatever the name; the reader of the
    /// request compares it.
    ///
    /// # Errors
    /// [`ApiError::loading`]; what [`Pool::acquire`] says; a request that names none of several.
    pub(crate) async fn served_for(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        match (self.models()?, name) {
            (Models::One(lone), _) => lone.ready().await,
            (Models::Pool(pool), Some(name)) => pool.acquire(name).await,
            (Models::Pool(_), None) => Err(ApiError::invalid("model", "`model` is missing")),
        }
    }

    /// The models that are open now.
    ///
    /// # Errors
    /// [`ApiError::loading`].
    pub(crate) fn open(&self) -> Result<Vec<Arc<Served>>, ApiError> {
        Ok(match self.models()? {
            Models::One(lone) => vec![lone.current()?],
            Models::Pool(pool) => pool.open().into_iter().map(|open| open.served).collect(),
        })
    }
}
