//! Conversion of API fields to a [`Conversation`], common to all APIs.

use std::sync::Arc;

use nestling::engine::text::TemplateTime;
use nestling::guide::{ToolChoice, ToolGuide};
use nestling::{ConstraintSource, Conversation, GenerateOptions, Message, Role};
use serde_json::{Map, Value};

use crate::answer_form::AnswerForm;
use crate::error::ApiError;
use crate::server::unix_seconds;
use crate::tools::Tools;

/// Fields of a request that describe a conversation.
#[derive(Debug)]
pub(crate) struct ConversationFields {
    pub messages: Vec<Message>,
    pub tools: Tools,
    /// Output constraint.
    pub form: Option<AnswerForm>,
    /// Request field of the output constraint, for error messages.
    pub form_place: &'static str,
    /// Additional variables of the chat template.
    pub arguments: Map<String, Value>,
}

impl ConversationFields {
    /// Builds the conversation and adds its output constraint to `options`. A conversation that ends with a text
    /// of the assistant is continued there.
    ///
    /// # Errors
    /// Returns an error if the tools cannot be compiled.
    pub fn conversation(self, options: &mut GenerateOptions) -> Result<Conversation, ApiError> {
        let Self { messages, tools, form, form_place, arguments } = self;
        options.constraint = constraint(&tools, form, form_place)?;
        let mut conversation = Conversation::new(messages);
        conversation.tools = tools.choice.tools(&tools.schemas).to_vec();
        conversation.tool_style = tools.style;
        conversation.template_arguments = arguments;
        conversation.continue_final_message = is_unfinished(&conversation.messages);
        // Default: only a clock after the year 292 billion overflows.
        let now = i64::try_from(unix_seconds()).unwrap_or(0);
        conversation.now = Some(TemplateTime::from_unix_seconds(now));
        Ok(conversation)
    }
}

/// Returns the output constraint of tools and a form. With both, the output is a call or has the form.
fn constraint(
    tools: &Tools,
    form: Option<AnswerForm>,
    form_place: &'static str,
) -> Result<Option<Arc<dyn ConstraintSource>>, ApiError> {
    let has_tools = !tools.schemas.is_empty() && tools.choice != ToolChoice::None;
    if !has_tools || (form.is_none() && !tools.is_constrained()) {
        return Ok(form.map(|form| Arc::new(form.guide) as _));
    }
    let guide = ToolGuide::new(&tools.schemas, tools.choice.clone());
    let mut guide = guide.map_err(|error| ApiError::invalid("tools", error.to_string()))?;
    if let Some(form) = form {
        let Some(schema) = &form.schema else {
            return Err(ApiError::unsupported(form_place, "only JSON can be combined with tools"));
        };
        let with_answer = guide.with_answer(schema);
        guide = with_answer.map_err(|error| ApiError::invalid(form_place, error.to_string()))?;
    }
    Ok(Some(Arc::new(guide)))
}

/// Returns true if the last message is a text of the assistant.
fn is_unfinished(messages: &[Message]) -> bool {
    messages.last().is_some_and(|last| {
        let has_text = last.content.as_ref().is_some_and(|content| !content.text().is_empty());
        last.role == Role::Assistant && last.tool_calls.is_empty() && has_text
    })
}
