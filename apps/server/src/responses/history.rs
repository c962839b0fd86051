//! Earlier items of a conversation: those of the responses that a request continues, and references to items.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::Owner;
use crate::error::ApiError;
use crate::field_path::FieldPath;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, MESSAGES_MAX, TEXT_BYTES_MAX};
use crate::response_store::{ChainError, ResponseStore, StoredResponse};
use crate::usage::random;

const PREVIOUS: &str = "previous_response_id";

/// Reason why nothing can be looked up.
const IS_OFF: &str =
    "this server stores no responses (--stored-responses 0); send the whole conversation";

/// Storage of one request: what it continues, and whether its response is stored.
#[derive(Debug)]
pub(super) struct RequestHistory {
    pub previous: Option<String>,
    /// Items of earlier responses, the oldest first.
    pub earlier: Vec<Value>,
    /// Input items of the request, if the response is to be stored.
    pub kept: Option<Vec<Value>>,
}

/// Reads `store` and `previous_response_id`, and replaces references among the input items by the items.
///
/// # Errors
/// Returns an error if a response or an item is not stored.
pub(super) fn take(
    fields: &mut Fields,
    store: &ResponseStore,
    owner: Owner,
) -> Result<RequestHistory, ApiError> {
    let asked = fields.flag("store")?;
    if asked == Some(true) && !store.is_on() {
        fields.ignore("store")?;
    }
    let previous = fields.text(PREVIOUS, TEXT_BYTES_MAX)?.filter(|id| !id.is_empty());
    let earlier = match &previous {
        Some(_) if !store.is_on() => return Err(fields.unsupported(PREVIOUS, IS_OFF)),
        Some(id) => items_until(store, owner, id).map_err(|error| refused(fields, error))?,
        None => Vec::new(),
    };
    resolve_references(fields, store, owner)?;
    // Default: responses are stored, as the API specifies.
    let is_kept = store.is_on() && asked.unwrap_or(true);
    let kept = is_kept.then(|| fields.peek("input").map_or_else(Vec::new, items_of));
    Ok(RequestHistory { previous, earlier, kept })
}

/// A chain that cannot be continued.
enum Unreadable {
    Chain(ChainError),
    Stored(ApiError),
}

fn refused(fields: &Fields, error: Unreadable) -> ApiError {
    let message = match error {
        Unreadable::Stored(error) => return error,
        Unreadable::Chain(ChainError::Missing(id)) => {
            let code = Some("previous_response_not_found");
            let message = format!("Previous response with id '{id}' not found.");
            return ApiError { code, ..fields.invalid(PREVIOUS, message) };
        }
        Unreadable::Chain(ChainError::TooLong) => {
            format!("the conversation is longer than {BODY_BYTES_MAX} bytes")
        }
    };
    fields.invalid(PREVIOUS, message)
}

/// Returns the input and output items of a response and of all that it continues.
fn items_until(store: &ResponseStore, owner: Owner, id: &str) -> Result<Vec<Value>, Unreadable> {
    let chain = store.chain(owner, id, BODY_BYTES_MAX).map_err(Unreadable::Chain)?;
    let mut items = Vec::new();
    for stored in &chain {
        items.extend(stored.input_items().map_err(Unreadable::Stored)?);
        items.extend(stored.output_items().map_err(Unreadable::Stored)?);
    }
    Ok(items)
}

/// Returns the input items of a response: those of the responses that it continues, and its own.
///
/// # Errors
/// Returns an error if an earlier response is no longer stored.
pub(super) fn input_items(
    store: &ResponseStore,
    owner: Owner,
    stored: &StoredResponse,
) -> Result<Vec<Value>, ApiError> {
    let earlier = stored.previous.as_deref().map(|id| items_until(store, owner, id)).transpose();
    let earlier = earlier.map_err(|error| match error {
        Unreadable::Stored(error) => error,
        Unreadable::Chain(_) => ApiError::no_response("an earlier response of this conversation"),
    })?;
    // Default: the response continues none.
    let mut items = earlier.unwrap_or_default();
    items.extend(stored.input_items()?);
    Ok(items)
}

/// Replaces each item of type `item_reference` by the stored item with its id.
fn resolve_references(
    fields: &mut Fields,
    store: &ResponseStore,
    owner: Owner,
) -> Result<(), ApiError> {
    let is_reference = |item: &Value| item["type"] == "item_reference";
    let has_references = |input: &Value| {
        input
            .as_array()
            .is_some_and(|items| items.len() <= MESSAGES_MAX && items.iter().any(is_reference))
    };
    if !fields.peek("input").is_some_and(has_references) {
        return Ok(());
    }
    let place = fields.at("input");
    let mut stored_items = StoredItems::default();
    fields.edit_list("input", |index, item| {
        if !is_reference(item) {
            return Ok(());
        }
        let place = place.item(index).field("id");
        let id = item["id"].as_str().ok_or_else(|| place.invalid("a text was expected"))?;
        if !store.is_on() {
            return Err(place.unsupported(IS_OFF));
        }
        let stored = store.with_item(owner, id).ok_or_else(|| {
            let message = format!("no stored response has an item with the id {id:?}");
            place.invalid(message)
        })?;
        *item = stored_items.find(&stored, id, &place)?;
        Ok(())
    })
}

/// Maximum total size in bytes of the stored responses that the references of a request are looked up in.
const REFERENCED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// Items of the stored response that was referred to last. References are short, and what they stand for need not
/// be, so both the work and the size of what is found are limited.
#[derive(Default)]
struct StoredItems {
    last: Option<(Arc<StoredResponse>, Vec<Value>)>,
    parsed_bytes: usize,
    found_bytes: usize,
}

impl StoredItems {
    fn find(
        &mut self,
        stored: &Arc<StoredResponse>,
        id: &str,
        place: &FieldPath,
    ) -> Result<Value, ApiError> {
        let too_much = |most: usize| place.invalid(format!("references to more than {most} bytes"));
        let is_last = |(last, _): &(Arc<StoredResponse>, _)| Arc::ptr_eq(last, stored);
        let items = match self.last.take().filter(is_last) {
            Some((_, items)) => items,
            None => {
                self.parsed_bytes += stored.bytes();
                if self.parsed_bytes > REFERENCED_BYTES_MAX {
                    return Err(too_much(REFERENCED_BYTES_MAX));
                }
                [stored.input_items()?, stored.output_items()?].concat()
            }
        };
        let found = items.iter().find(|item| item["id"] == id).cloned();
        self.last = Some((Arc::clone(stored), items));
        let found = found.ok_or_else(|| ApiError::internal("a stored item is lost"))?;
        self.found_bytes += found.to_string().len();
        if self.found_bytes > BODY_BYTES_MAX {
            return Err(too_much(BODY_BYTES_MAX));
        }
        Ok(found)
    }
}

/// Returns the input as items, each with a type and an id.
fn items_of(input: &Value) -> Vec<Value> {
    match input {
        Value::String(text) => {
            let content = json!([{ "type": "input_text", "text": text }]);
            let item = json!({ "type": "message", "role": "user", "content": content });
            vec![identified(&item)]
        }
        Value::Array(items) => items.iter().map(identified).collect(),
        // The reader of the items refuses it.
        _ => Vec::new(),
    }
}

fn identified(item: &Value) -> Value {
    let mut item = item.clone();
    let Value::Object(map) = &mut item else { return item };
    // Default: an item without a type is a message.
    let kind = map.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "message" => "msg_",
        "reasoning" => "rs_",
        "function_call" => "fc_",
        "function_call_output" => "fco_",
        "custom_tool_call" => "ctc_",
        "custom_tool_call_output" => "ctco_",
        _ => "item_",
    };
    if kind == "message" {
        let part = if map.get("role").is_some_and(|role| role == "assistant") {
            "output_text"
        } else {
            "input_text"
        };
        if let Some(text @ Value::String(_)) = map.get("content").cloned() {
            map.insert("content".into(), json!([{ "type": part, "text": text }]));
        }
    }
    map.insert("type".into(), kind.into());
    if !map.get("id").is_some_and(Value::is_string) {
        map.insert("id".into(), format!("{prefix}{:016x}{:016x}", random(), random()).into());
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_path::IgnoredFields;

    fn stored(id: &str, bytes: usize) -> Arc<StoredResponse> {
        let text = "x".repeat(bytes);
        Arc::new(StoredResponse {
            owner: Owner::ANYONE,
            previous: None,
            input: json!([{ "id": id }, { "id": "long", "text": text }]).to_string(),
            response: json!({ "output": [] }).to_string(),
            item_ids: vec![id.into()],
        })
    }

    #[test]
    fn the_work_of_references_is_bounded() {
        let place = FieldPath::request(IgnoredFields::default()).field("input");
        let [first, second] = ["a", "b"].map(|id| stored(id, BODY_BYTES_MAX - 1000));
        let mut items = StoredItems::default();
        // References to one response are one look into it.
        for _ in 0..1000 {
            assert_eq!(items.find(&first, "a", &place).unwrap(), json!({ "id": "a" }));
        }
        assert!(items.find(&second, "b", &place).is_ok());
        assert!(items.find(&first, "a", &place).is_ok());
        assert!(items.find(&second, "b", &place).is_ok());
        let error = items.find(&first, "a", &place).and_then(|_| items.find(&second, "b", &place));
        assert_eq!(error.unwrap_err().param.as_deref(), Some("input"));
        let mut items = StoredItems::default();
        assert!(items.find(&first, "long", &place).is_ok());
        assert!(items.find(&first, "long", &place).is_err());
    }
}
