//! `POST /memory`: another memory budget while the model runs.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use nestling::{EngineError, ErrorClass};

use crate::blocking::blocking;
use crate::describe;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::server::Served;
use crate::tokens::take_model;

const BUDGET: &str = "budget_bytes";

/// Sets the budget, which waits for the step under way, and tells how it is then.
///
/// # Errors
/// A budget above the one that the server began with, or below what the model holds besides streamed experts.
pub(crate) async fn set_budget(
    served: Arc<Served>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    take_model(&mut fields, &served)?;
    let Some(most) = served.memory_max else {
        let message = "the server has no memory budget, or several models share one";
        return Err(fields.unsupported(BUDGET, message));
    };
    let bytes = fields.integer(BUDGET, 0..=most)?;
    let bytes = bytes.ok_or_else(|| fields.invalid(BUDGET, "`budget_bytes` is missing"))?;
    fields.end()?;
    let work = move || {
        let refused = |error: EngineError| match error.class() {
            // The same will not work later.
            ErrorClass::NoRoom => ApiError::invalid(BUDGET, error.to_string()),
            _ => served.refused(error, BUDGET),
        };
        served.model.set_memory_budget(bytes).map_err(refused)?;
        Ok(json_response(StatusCode::OK, &describe::memory(&served)))
    };
    blocking(work).await?
}
