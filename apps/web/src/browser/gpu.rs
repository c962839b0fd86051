//! Calls that may wait for the GPU.
//!
//! A wait suspends the WebAssembly stack, which requires that no JavaScript function is on it. The package therefore
//! enters `run`, whose only argument and result are numbers, through `WebAssembly.promising`. Parameters are set
//! before, and results are taken after it. While a call is suspended, its borrow of the tab refuses every other one.

use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use super::module::{NestlingTab, parse, thrown};
use crate::error::TabError;
use crate::tab::{AnswerOptions, Tab};

/// A call of the package.
#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "camelCase")]
pub(super) enum Call {
    OpenDevice,
    Send { chat: u32, text: String, options: AnswerOptions },
    Complete { text: String, options: AnswerOptions },
    Step,
    CloseChat { chat: u32 },
}

impl Call {
    fn run(self, tab: &mut Tab) -> Result<String, TabError> {
        match self {
            Self::OpenDevice => tab.open_device().and_then(|()| json(&())),
            Self::Send { chat, text, options } => {
                tab.send(chat, &text, options).and_then(|()| json(&()))
            }
            Self::Complete { text, options } => {
                tab.complete(&text, options).and_then(|()| json(&()))
            }
            Self::Step => tab.step().and_then(|step| json(&step)),
            Self::CloseChat { chat } => {
                tab.close_chat(chat);
                json(&())
            }
        }
    }
}

#[wasm_bindgen]
impl NestlingTab {
    /// Sets the call that `run` computes, as JSON.
    pub fn prepare(&mut self, call: &str) -> Result<(), JsValue> {
        self.outcome = None;
        self.call = Some(parse(call).map_err(thrown)?);
        Ok(())
    }

    /// Computes the prepared call. The stack may be suspended meanwhile.
    pub fn run(&mut self) {
        self.outcome = self.call.take().map(|call| call.run(&mut self.tab));
    }

    /// Takes the result of `run` as JSON.
    pub fn outcome(&mut self) -> Result<String, JsValue> {
        // Default: a call that was not run has no result.
        self.outcome.take().unwrap_or(Err(TabError::NotReady)).map_err(thrown)
    }
}

fn json<T: Serialize>(value: &T) -> Result<String, TabError> {
    serde_json::to_string(value)
        .map_err(|error| TabError::Invalid { what: "result", reason: error.to_string() })
}
