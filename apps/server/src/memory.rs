//! `POST /memory`: changes the memory budget of a running model.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use nestling::{EngineError, ErrorClass};

use crate::blocking::blocking;
use crate::describe;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::server::ServedModel;
use crate::tokens::take_model;

const BUDGET: &str = "budget_bytes";

/// Sets the memory budget between two steps and returns the resulting memory use.
///
/// # Errors
/// Returns an error if the budget exceeds the one at server start, or is below the memory that the model uses
/// besides streamed experts.
pub(crate) async fn set_budget(
    served: Arc<ServedModel>,
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
            // Retrying the same budget will not help.
            ErrorClass::NoRoom => ApiError::invalid(BUDGET, error.to_string()),
            _ => served.refused(error, BUDGET),
        };
        served.model.set_memory_budget(bytes).map_err(refused)?;
        Ok(json_response(StatusCode::OK, &describe::memory(&served)))
    };
    blocking(work).await?
}
