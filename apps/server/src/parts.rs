//! A completion as a list of parts: reasoning, text and tool calls, in order.

use nestling::{Event, GenerationSummary, TokenEvent};
use serde_json::Value;

use crate::answers::{Answers, ChoiceEvent};
use crate::error::ApiError;
use crate::logprobs::PendingTokens;

/// Text in place of an image, document or reference in a repeated message, such as a tool result.
pub(crate) const OMITTED: &str = "[content that this model cannot read]";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Reasoning,
    Text,
    Call {
        id: String,
        name: String,
        /// `None` until the arguments are complete. A string if they are not a JSON object.
        arguments: Option<Value>,
    },
}

/// A contiguous part of a completion with a single type.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub kind: Kind,
    /// Text of the part; for a call, the text of its arguments.
    pub text: String,
    /// Tokens of a text part.
    pub tokens: Vec<TokenEvent>,
}

/// A change of the last part of the list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Open,
    /// Text and tokens were appended.
    Add(String, Vec<TokenEvent>),
    Close,
}

#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub list: Vec<Part>,
    is_open: bool,
    unsaid: PendingTokens,
    /// Index of the part that was still open at the end of the completion.
    pub open_at_end: Option<usize>,
    pub finished: Option<GenerationSummary>,
}

impl Parts {
    /// Returns the number of reasoning tokens so far.
    pub fn reasoning_tokens(&self) -> usize {
        self.unsaid.reasoning
    }

    /// Applies an event to the list and calls `tell` after each change.
    pub fn take(&mut self, event: Event, tell: &mut dyn FnMut(&Part, usize, Step)) {
        let tokens = self.unsaid.take(&event);
        match event {
            Event::Reasoning(text) => self.add(Kind::Reasoning, text, Vec::new(), tell),
            Event::Text(text) => self.add(Kind::Text, text, tokens, tell),
            Event::ToolCallStart { id, name, .. } => {
                self.open(Kind::Call { id, name, arguments: None }, tell);
            }
            Event::ToolCallArguments { delta, .. } => self.write(delta, Vec::new(), tell),
            Event::ToolCall(call) => {
                if let Some(Part { kind: Kind::Call { arguments, .. }, .. }) = self.list.last_mut()
                {
                    *arguments = Some(call.arguments);
                }
                self.close(tell);
            }
            Event::Finished(finished) => {
                // Parts are sequential: only the last may be open.
                self.open_at_end = self.list.len().checked_sub(1).filter(|_| self.is_open);
                self.close(tell);
                self.finished = Some(finished);
            }
            _ => {}
        }
    }

    /// Appends to the last part if it has this type, otherwise opens a new part.
    fn add(
        &mut self,
        kind: Kind,
        text: String,
        tokens: Vec<TokenEvent>,
        tell: &mut dyn FnMut(&Part, usize, Step),
    ) {
        let goes_on = self.is_open && self.list.last().is_some_and(|part| part.kind == kind);
        if !goes_on {
            self.open(kind, tell);
        }
        self.write(text, tokens, tell);
    }

    fn open(&mut self, kind: Kind, tell: &mut dyn FnMut(&Part, usize, Step)) {
        self.close(tell);
        self.list.push(Part { kind, text: String::new(), tokens: Vec::new() });
        self.is_open = true;
        self.tell(Step::Open, tell);
    }

    fn write(
        &mut self,
        text: String,
        tokens: Vec<TokenEvent>,
        tell: &mut dyn FnMut(&Part, usize, Step),
    ) {
        if let Some(part) = self.list.last_mut().filter(|_| self.is_open) {
            part.text.push_str(&text);
            part.tokens.extend_from_slice(&tokens);
            self.tell(Step::Add(text, tokens), tell);
        }
    }

    fn close(&mut self, tell: &mut dyn FnMut(&Part, usize, Step)) {
        if std::mem::take(&mut self.is_open) {
            self.tell(Step::Close, tell);
        }
    }

    fn tell(&self, step: Step, tell: &mut dyn FnMut(&Part, usize, Step)) {
        if let Some(part) = self.list.last() {
            tell(part, self.list.len() - 1, step);
        }
    }

    /// Returns the end of the completion.
    ///
    /// # Errors
    /// An internal error if the completion has not ended.
    pub fn end(&self) -> Result<&GenerationSummary, ApiError> {
        self.finished.as_ref().ok_or_else(|| ApiError::internal("an answer has no end"))
    }
}

/// Collects the only choice of a request.
///
/// # Errors
/// Returns the error of the generation.
pub(crate) async fn whole(mut answers: Answers) -> Result<Parts, ApiError> {
    let mut parts = Parts::default();
    while let Some(said) = answers.next().await {
        let ChoiceEvent { event, .. } = said?;
        parts.take(event, &mut |_, _, _| {});
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestling::ToolCall;
    use serde_json::json;

    #[test]
    fn parts_come_in_order_and_every_one_is_closed() {
        let call = |index: usize, name: &str| Event::ToolCallStart {
            index,
            id: format!("call_{index}"),
            name: name.into(),
        };
        let whole = |name: &str| {
            let arguments = json!({ "x": 1 });
            Event::ToolCall(ToolCall { id: "call_0".into(), name: name.into(), arguments })
        };
        let (mut parts, mut told) = (Parts::default(), Vec::new());
        for event in [
            Event::Reasoning("a".into()),
            Event::Reasoning("b".into()),
            Event::Text("c".into()),
            call(0, "f"),
            Event::ToolCallArguments { index: 0, delta: "{\"x\":".into() },
            Event::ToolCallArguments { index: 0, delta: "1}".into() },
            whole("f"),
            call(1, "g"),
            whole("g"),
            Event::Text("d".into()),
        ] {
            parts.take(event, &mut |_, index, step| told.push((index, step)));
        }
        let texts: Vec<&str> = parts.list.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(texts, ["ab", "c", "{\"x\":1}", "", "d"]);
        let Kind::Call { name, arguments, .. } = &parts.list[2].kind else { panic!("no call") };
        assert_eq!((name.as_str(), arguments), ("f", &Some(json!({ "x": 1 }))));
        for index in 0..parts.list.len() {
            let own: Vec<&Step> =
                told.iter().filter(|(at, _)| *at == index).map(|(_, s)| s).collect();
            assert_eq!(own[0], &Step::Open);
            let closes = own.iter().filter(|step| ***step == Step::Close).count();
            assert_eq!(closes, usize::from(index < 4), "part {index}");
        }
        assert!(told.is_sorted_by_key(|(index, _)| *index));
    }
}
