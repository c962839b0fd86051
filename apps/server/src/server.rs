//! Shared state of a server: its model or models, access rules and limits.

use std::sync::{Arc, OnceLock};

use axum::http::StatusCode;
use nestling::Model;
use nestling::engine::text::ToolStyle;

use crate::access::Access;
use crate::body::BodyBudget;
use crate::error::ApiError;
use crate::field_path::{IgnoredFields, UnknownFields};
use crate::limits::{ConnectionLimits, STORED_RESPONSES_BYTES_MAX};
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::response_store::ResponseStore;
use crate::sampling::without_tag;
use crate::served_model::ServedOptions;
use crate::single_model::{Reopen, SingleModel};
use crate::source::{ModelSource, OpenedModel, PoolOptions};

pub(crate) use crate::served_model::{ServedModel, unix_seconds};

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Access rules.
    pub access: Access,
    /// Maximum number of choices per prompt (`n`).
    pub choices_max: usize,
    /// Maximum number of concurrent generating requests. Further ones are answered with 503.
    pub requests_max: usize,
    /// Maximum number of idle sessions kept for follow-up requests.
    pub idle_sessions_max: usize,
    /// Maximum size in bytes of all stored responses (`store` of `/v1/responses`); 0 stores none.
    pub stored_responses_bytes_max: usize,
    /// Connection limits.
    pub connections: ConnectionLimits,
    /// Treatment of tools for models whose chat template has no place for them.
    pub tool_style: ToolStyle,
    /// Treatment of request fields without effect.
    pub unknown_fields: UnknownFields,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            access: Access::default(),
            choices_max: 8,
            requests_max: 256,
            idle_sessions_max: 16,
            stored_responses_bytes_max: STORED_RESPONSES_BYTES_MAX,
            connections: ConnectionLimits::default(),
            tool_style: ToolStyle::Generic,
            unknown_fields: UnknownFields::default(),
        }
    }
}

/// A server, with or without a model. Clones share the same server.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ServerOptions,
    models: OnceLock<Models>,
    bodies: BodyBudget,
    responses: Arc<ResponseStore>,
}

#[derive(Debug)]
pub(crate) enum Models {
    One(SingleModel),
    /// Models of a source, opened on demand.
    Pool(Pool),
}

impl Server {
    /// Creates a server without a model. Requests fail with "Loading model" until one is set.
    pub fn new(options: ServerOptions) -> Self {
        let bodies = BodyBudget::new(options.connections.bodies_bytes_max);
        let responses = Arc::new(ResponseStore::new(options.stored_responses_bytes_max));
        let models = OnceLock::new();
        Self { inner: Arc::new(Inner { options, models, bodies, responses }) }
    }

    /// Serves `model` under the name `id`. Ignored if the server has a model already.
    pub fn set_model(&self, model: Model, id: impl Into<String>) {
        let metrics = Arc::new(Metrics::default());
        let options = self.served_options();
        let served = ServedModel::new(model, id.into(), &options, metrics, None, false);
        self.set(Models::One(SingleModel::new(served, options, None)));
    }

    /// Serves `opened` under the name `id`. If its file changes, the model is closed and the next request
    /// reopens it with `reopen`. Ignored if the server has a model already.
    pub fn set_reopenable_model(&self, opened: OpenedModel, id: impl Into<String>, reopen: Reopen) {
        let (metrics, options) = (Arc::new(Metrics::default()), self.served_options());
        let OpenedModel { model, hold } = opened;
        let served = ServedModel::new(model, id.into(), &options, metrics, Some(hold), false);
        self.set(Models::One(SingleModel::new(served, options, Some(reopen))));
    }

    /// Serves the models of `source`, each opened when a request names it. Ignored if the server has a source
    /// or a model already.
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
            tool_style: options.tool_style,
            choices_max: options.choices_max,
            requests_max: options.requests_max,
            idle_sessions_max: options.idle_sessions_max,
            write_time: options.connections.write_time,
            responses: Arc::clone(&self.inner.responses),
        }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.inner.options.access
    }

    /// Returns the record for the fields of a new request.
    pub(crate) fn ignored_fields(&self) -> IgnoredFields {
        IgnoredFields::new(self.inner.options.unknown_fields)
    }

    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.inner.bodies
    }

    /// Returns the stored responses of all models.
    pub(crate) fn responses(&self) -> &ResponseStore {
        &self.inner.responses
    }

    pub(crate) fn connection_limits(&self) -> &ConnectionLimits {
        &self.inner.options.connections
    }

    /// Returns the models.
    ///
    /// # Errors
    /// [`ApiError::loading`] if no model is set.
    pub(crate) fn models(&self) -> Result<&Models, ApiError> {
        self.inner.models.get().ok_or_else(ApiError::loading)
    }

    /// Returns the model for a request. A single model is returned regardless of `name`; the request parser
    /// compares the name.
    ///
    /// # Errors
    /// [`ApiError::loading`], the errors of [`Pool::acquire`], and an error if a pool is used without a name.
    pub(crate) async fn served_for(
        &self,
        name: Option<&str>,
    ) -> Result<Arc<ServedModel>, ApiError> {
        match (self.models()?, name) {
            (Models::One(lone), _) => lone.ready().await,
            (Models::Pool(pool), Some(name)) => match pool.acquire(name).await {
                Err(error)
                    if error.status == StatusCode::NOT_FOUND && without_tag(name) != name =>
                {
                    pool.acquire(without_tag(name)).await
                }
                acquired => acquired,
            },
            (Models::Pool(_), None) => Err(ApiError::invalid("model", "`model` is missing")),
        }
    }

    /// Returns the open models.
    ///
    /// # Errors
    /// [`ApiError::loading`] if no model is set.
    pub(crate) fn open(&self) -> Result<Vec<Arc<ServedModel>>, ApiError> {
        Ok(match self.models()? {
            Models::One(lone) => vec![lone.current()?],
            Models::Pool(pool) => pool.open().into_iter().map(|open| open.served).collect(),
        })
    }
}
