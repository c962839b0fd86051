//! `/api/version`, `/api/tags`, `/api/ps`, `/api/show`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::request::model_name;
use super::time::written;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::limits::TEXT_BYTES_MAX;
use crate::sampling::without_tag;
use crate::server::{Models, ServedModel, Server};
use crate::source::ListedModel;

/// Version of Ollama whose API is served. Editors require at least this one.
const OLLAMA_VERSION: &str = "0.6.4";

/// Expiry time of a model that is never closed.
const NEVER: &str = "9999-12-31T23:59:59Z";

pub(super) fn version() -> Response {
    json_response(
        StatusCode::OK,
        &json!({
            "version": OLLAMA_VERSION, "nestling": env!("CARGO_PKG_VERSION"),
        }),
    )
}

/// Returns all models. A single model is returned as a list of one.
async fn listed(server: &Server) -> Result<Vec<ListedModel>, ApiError> {
    match server.models()? {
        Models::Pool(pool) => pool.list().await,
        Models::One(lone) => {
            let served = lone.current()?;
            Ok(vec![ListedModel {
                name: served.id.clone(),
                bytes: served.model.weight_bytes(),
                created: served.created,
                format: "nestling",
            }])
        }
    }
}

/// Returns a model digest, computed from the listing alone.
fn digest(listed: &ListedModel) -> String {
    let facts = format!("{} {} {} {}", listed.name, listed.bytes, listed.created, listed.format);
    let hash: [u8; 32] = Sha256::digest(facts).into();
    let mut text = String::new();
    for byte in hash {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn details(format: &str, family: &str) -> Value {
    let families: Vec<&str> =
        Some(family).filter(|family| !family.is_empty()).into_iter().collect();
    json!({
        "parent_model": "", "format": format, "family": family, "families": families,
        "parameter_size": "", "quantization_level": "",
    })
}

fn family(served: &ServedModel) -> String {
    served.model.config().architecture.model_type().to_owned()
}

fn at(seconds: u64) -> String {
    written(UNIX_EPOCH + Duration::from_secs(seconds))
}

pub(super) async fn tags(server: &Server) -> Result<Response, ApiError> {
    let open = server.open()?;
    let models = listed(server).await?.into_iter().map(|listed| {
        let served = open.iter().find(|served| served.id == listed.name);
        // Default: the family is unknown unless the model is open.
        let family = served.map(|served| family(served)).unwrap_or_default();
        json!({
            "name": listed.name, "model": listed.name, "modified_at": at(listed.created),
            "size": listed.bytes, "digest": digest(&listed),
            "details": details(listed.format, &family),
        })
    });
    let models: Vec<Value> = models.collect();
    Ok(json_response(StatusCode::OK, &json!({ "models": models })))
}

pub(super) async fn ps(server: &Server) -> Result<Response, ApiError> {
    let listed = listed(server).await?;
    let open: Vec<(Arc<ServedModel>, Option<Duration>)> = match server.models()? {
        Models::One(lone) => vec![(lone.current()?, None)],
        Models::Pool(pool) => {
            pool.open().into_iter().map(|open| (open.served, open.left)).collect()
        }
    };
    let models = open.into_iter().map(|(served, left)| {
        let known = listed.iter().find(|listed| listed.name == served.id);
        let expires = left.map_or_else(|| NEVER.into(), |left| written(SystemTime::now() + left));
        json!({
            "name": served.id, "model": served.id, "size": served.used_bytes(),
            "size_vram": 0, "digest": known.map(digest), "expires_at": expires,
            "details": details(known.map_or("", |known| known.format), &family(&served)),
            "context_length": served.model.context_length(),
        })
    });
    let models: Vec<Value> = models.collect();
    Ok(json_response(StatusCode::OK, &json!({ "models": models })))
}

/// Describes a model. A closed model is not opened for the purpose.
pub(super) async fn show(server: &Server, mut fields: Fields) -> Result<Response, ApiError> {
    let old = fields.text("name", TEXT_BYTES_MAX)?;
    let name = match old.filter(|_| !fields.names("model")) {
        Some(name) => name,
        None => model_name(&mut fields)?,
    };
    // Fields of older versions, which do not change the description: `verbose`, `system`, `template`.
    fields.end()?;
    let name = without_tag(&name).to_owned();
    let all = listed(server).await?;
    let known = all.into_iter().find(|listed| listed.name == name);
    let known = known.ok_or_else(|| ApiError::no_listed_model(&name))?;
    let open = server.open()?;
    let served = open.iter().find(|served| served.id == name);
    let mut info = Map::new();
    let mut capabilities = vec!["completion"];
    let (mut kind, mut template) = (String::new(), String::new());
    if let Some(served) = served {
        let can = served.model.capabilities();
        kind = family(served);
        info.insert("general.architecture".into(), kind.as_str().into());
        info.insert(format!("{kind}.context_length"), can.context_length.into());
        capabilities.extend(served.takes_tools().then_some("tools"));
        capabilities.extend(can.thinking.then_some("thinking"));
        let source = served.model.chat_template().map(|template| template.source().to_owned());
        // Default: no template; the model only completes text.
        template = source.unwrap_or_default();
    }
    let body = json!({
        "modelfile": "", "parameters": "", "template": template, "license": "",
        "details": details(known.format, &kind), "model_info": info,
        "capabilities": capabilities, "modified_at": at(known.created),
    });
    Ok(json_response(StatusCode::OK, &body))
}
