//! Conversion of API fields to a [`Conversation`], common to all APIs.

use std::sync::Arc;

use nestling::engine::text::TemplateTime;
use nestling::guide::{Guide, ToolGuide};
use nestling::{Conversation, GenerateOptions, Message};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::server::unix_seconds;
use crate::tools::Tools;

/// Fields of a request that describe a conversation.
#[derive(Debug)]
pub(crate) struct ConversationFields {
    pub messages: Vec<Message>,
    pub tools: Tools,
    /// Output constraint.
    pub form: Option<Guide>,
    /// Request field of the output constraint, for error messages.
    pub form_place: &'static str,
    /// Additional variables of the chat template.
    pub arguments: Map<String, Value>,
}

impl ConversationFields {
    /// Builds the conversation and adds its output constraint to `options`.
    ///
    /// # Errors
    /// Returns an error if the tools cannot be compiled, or if an output constraint is combined with
    /// constrained tools.
    pub fn conversation(self, options: &mut GenerateOptions) -> Result<Conversation, ApiError> {
        let Self { messages, tools, form, form_place, arguments } = self;
        let mut conversation = Conversation::new(messages);
        conversation.tools = tools.choice.tools(&tools.schemas).to_vec();
        conversation.template_arguments = arguments;
        // Default: only a clock after the year 292 billion overflows.
        let now = i64::try_from(unix_seconds()).unwrap_or(0);
        conversation.now = Some(TemplateTime::from_unix_seconds(now));
        if tools.is_constrained() {
            if form.is_some() {
                let message = "answers in a form and tools that must be called, or called strictly, exclude each other";
                return Err(ApiError::unsupported(form_place, message));
            }
            let guide = ToolGuide::new(&tools.schemas, tools.choice);
            let guide = guide.map_err(|error| ApiError::invalid("tools", error.to_string()))?;
            options.constraint = Some(Arc::new(guide));
        } else if let Some(guide) = form {
            if !conversation.tools.is_empty() {
                let message =
                    "answers in a form and tools exclude each other; `tool_choice` may be none";
                return Err(ApiError::unsupported(form_place, message));
            }
            options.constraint = Some(Arc::new(guide));
        }
        Ok(conversation)
    }
}
