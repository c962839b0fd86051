//! A conversation to be answered, whichever API asks for it.

use std::sync::Arc;

use nestling::engine::text::TemplateTime;
use nestling::guide::{Guide, ToolGuide};
use nestling::{Conversation, GenerateOptions, Message};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::server::unix_seconds;
use crate::tools::Tools;

/// What an API's fields say of a conversation.
#[derive(Debug)]
pub(crate) struct Asked {
    pub messages: Vec<Message>,
    pub tools: Tools,
    /// The form of the answer.
    pub form: Option<Guide>,
    /// The field that the form came in.
    pub form_place: &'static str,
    /// What the chat template is told besides.
    pub arguments: Map<String, Value>,
}

impl Asked {
    /// The conversation; what its answer must look like becomes part of the options.
    ///
    /// # Errors
    /// Tools that cannot be kept to, and what excludes each other.
    pub fn conversation(self, options: &mut GenerateOptions) -> Result<Conversation, ApiError> {
        let Self { messages, tools, form, form_place, arguments } = self;
        let mut conversation = Conversation::new(messages);
        conversation.tools = tools.choice.tools(&tools.schemas).to_vec();
        conversation.template_arguments = arguments;
        // Default: a clock that cannot be after the year 2262.
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
