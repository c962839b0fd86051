//! Messages of Ollama's API. Calls have no ids, and tool results name their tool.

use nestling::{Message, Role, ToolCall};
use serde_json::Value;

use crate::error::ApiError;
use crate::field_path::FieldPath;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};

/// # Errors
/// Returns an error if there are too many messages or an invalid one.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let name = "messages";
    // Default: a request without messages only loads the model.
    let messages = fields.list(name, MESSAGES_MAX)?.unwrap_or_default();
    let mut reader = Reader::default();
    let place = fields.at(name);
    let read = |(index, message)| reader.read(&place.item(index), message);
    messages.into_iter().enumerate().map(read).collect()
}

/// Assigns ids to calls, and matches tool results with calls.
#[derive(Debug, Default)]
struct Reader {
    calls: usize,
    /// Calls without a result, as pairs of id and name.
    open: Vec<(String, String)>,
}

impl Reader {
    fn read(&mut self, place: &FieldPath, message: Value) -> Result<Message, ApiError> {
        let mut fields = Fields::new(place.clone(), message)?;
        let role = fields.required_text("role", NAME_BYTES_MAX)?;
        let role = match role.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => {
                let message =
                    format!("system, user, assistant or tool was expected, found `{role}`");
                return Err(fields.invalid("role", message));
            }
        };
        // Default: messages with only tool calls have no content.
        let content = fields.text("content", BODY_BYTES_MAX)?.unwrap_or_default();
        let mut message = Message::new(role, content);
        fields.refuse("images", "no model here sees images")?;
        let thinking = fields.text("thinking", BODY_BYTES_MAX)?;
        message.reasoning = thinking.filter(|thinking| !thinking.is_empty());
        // Default: no calls.
        let calls = fields.list("tool_calls", CALLS_MAX)?.unwrap_or_default();
        for (index, call) in calls.into_iter().enumerate() {
            let call = self.call(place.field("tool_calls").item(index), call)?;
            message.tool_calls.push(call);
        }
        let tool = fields.text("tool_name", TEXT_BYTES_MAX)?;
        let id = fields.text("tool_call_id", TEXT_BYTES_MAX)?;
        if message.role == Role::Tool {
            message.tool_call_id = id.or_else(|| self.answered(tool.as_deref()));
            message.name = tool;
        }
        fields.end()?;
        Ok(message)
    }

    fn call(&mut self, place: FieldPath, call: Value) -> Result<ToolCall, ApiError> {
        let mut fields = Fields::new(place, call)?;
        let id = fields.text("id", TEXT_BYTES_MAX)?;
        fields.text("type", NAME_BYTES_MAX)?;
        let function = fields.object("function")?;
        let mut function =
            function.ok_or_else(|| fields.invalid("function", "`function` is missing"))?;
        fields.end()?;
        // The index repeats the order of the calls, so it is ignored.
        function.take("index");
        let name = function.required_text("name", TEXT_BYTES_MAX)?;
        // Default: empty arguments for tools without parameters.
        let arguments =
            function.take("arguments").unwrap_or_else(|| Value::Object(Default::default()));
        if !arguments.is_object() {
            return Err(function.invalid("arguments", "an object was expected"));
        }
        function.end()?;
        let id = id.unwrap_or_else(|| format!("call_{}", self.calls));
        self.calls += 1;
        self.open.push((id.clone(), name.clone()));
        Ok(ToolCall { id, name, arguments })
    }

    /// Removes the first pending call of this tool and returns its id.
    fn answered(&mut self, tool: Option<&str>) -> Option<String> {
        let is_meant = |call: &(String, String)| tool.is_none_or(|tool| call.1 == tool);
        let index = self.open.iter().position(is_meant)?;
        Some(self.open.remove(index).0)
    }
}
