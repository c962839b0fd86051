//! Long texts become tokens on a thread of their own, so that whoever waits can turn away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;
use nestling_text::{EncodeOptions, RenderedChat, TextError, Tokenizer};

/// Longest text that is encoded on the caller's thread: a few milliseconds' work.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// How often a caller that waits asks whether it is still wanted.
const POLL: Duration = Duration::from_millis(10);

/// Encodes texts for all models of an engine.
///
/// Short texts are encoded at once, on the caller's thread. A long one is encoded on a thread of its own, which is told
/// to stop when the caller cancels; the caller does not wait until it has. It does stop, between two words, or within
/// the time that every text is given. Until then the next long text waits, unless it is cancelled: there is never more
/// than one thread, and so never more than one that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct EncodeWorker {
    place: Arc<WorkerPlace>,
}

/// Room for one thread.
#[derive(Debug, Default)]
struct WorkerPlace {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// Held by the thread.
struct PlaceGuard(Arc<WorkerPlace>);

impl EncodeWorker {
    /// [`Tokenizer::encode`], until `cancel` is used.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        options: EncodeOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        if is_inline(text.len()) {
            let tokens = tokenizer.encode_until(text, options, &|| cancel.is_cancelled());
            return tokens.map_err(text_error);
        }
        tokenizer.check_text(text).map_err(text_error)?;
        let (tokenizer, text) = (tokenizer.clone(), text.to_owned());
        self.run(cancel, move |stopped| tokenizer.encode_until(&text, options, stopped))
    }

    /// [`RenderedChat::tokens`], until `cancel` is used.
    pub fn encode_chat(
        &self,
        tokenizer: &Tokenizer,
        chat: &RenderedChat,
        cancel: &CancelToken,
    ) -> Result<Vec<u32>, EngineError> {
        if is_inline(chat.text_bytes()) {
            let tokens = chat.tokens_until(tokenizer, &|| cancel.is_cancelled());
            return tokens.map_err(text_error);
        }
        let (tokenizer, chat) = (tokenizer.clone(), chat.clone());
        self.run(cancel, move |stopped| chat.tokens_until(&tokenizer, stopped))
    }

    /// Runs `work` on a thread; `work` asks what it is given whether to stop.
    fn run(
        &self,
        cancel: &CancelToken,
        work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> Result<Vec<u32>, TextError> + Send + 'static,
    ) -> Result<Vec<u32>, EngineError> {
        let place = self.take_place(cancel)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stopped);
        let (sender, receiver) = sync_channel(1);
        let thread = thread::Builder::new().name("nestling-encode".into());
        let spawned = thread.spawn(move || {
            let tokens = work(&|| told.load(Ordering::Relaxed));
            drop(place);
            // Nobody listens after a cancel.
            drop(sender.send(tokens));
        });
        spawned.map_err(EngineError::Thread)?;
        loop {
            match receiver.recv_timeout(POLL) {
                Ok(tokens) => return tokens.map_err(text_error),
                Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    stopped.store(true, Ordering::Relaxed);
                    return Err(EngineError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(EngineError::Panicked { what: "the encoding of a text" });
                }
            }
        }
    }

    /// Waits until no thread runs.
    fn take_place(&self, cancel: &CancelToken) -> Result<PlaceGuard, EngineError> {
        let mut is_taken = whole(self.place.is_taken.lock());
        while *is_taken {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            is_taken = whole(self.place.freed.wait_timeout(is_taken, POLL)).0;
        }
        *is_taken = true;
        Ok(PlaceGuard(Arc::clone(&self.place)))
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        *whole(self.0.is_taken.lock()) = false;
        self.0.freed.notify_one();
    }
}

/// Whether a text of so many bytes is encoded on the caller's thread: a short one, and where there are no threads.
fn is_inline(bytes: usize) -> bool {
    bytes <= INLINE_BYTES_MAX || cfg!(target_family = "wasm")
}

/// A cancel is the engine's own error.
pub(crate) fn text_error(error: TextError) -> EngineError {
    match error {
        TextError::TemplateCancelled | TextError::EncodingCancelled => EngineError::Cancelled,
        error => EngineError::text(error),
    }
}
