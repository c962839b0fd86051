//! Cancellable tokenization of long texts on a separate thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;
use nestling_formats::memory::{OutOfMemory, try_to_string};
use nestling_text::{EncodeOptions, RenderedChat, TextError, Tokenizer};

/// Maximum length in bytes of a text encoded on the caller's thread. Such a text takes a few milliseconds.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Interval at which a waiting caller checks for cancellation.
const POLL: Duration = Duration::from_millis(10);

/// Encodes texts for all models of an engine.
///
/// Short texts are encoded on the caller's thread. A long text is encoded on a separate thread, which is
/// signalled to stop when the caller cancels. The caller returns without waiting for the thread, which stops
/// at the next word or at the time limit that applies to every text. Until then the next long text waits,
/// unless it is cancelled. At most one thread runs at a time, so at most one abandoned encoding runs.
#[derive(Debug, Default)]
pub(crate) struct EncodeWorker {
    place: Arc<WorkerPlace>,
}

#[derive(Debug, Default)]
struct WorkerPlace {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// The permit while the thread holds it, released on drop.
struct PlaceGuard(Arc<WorkerPlace>);

impl EncodeWorker {
    /// Runs [`Tokenizer::encode`], stopping if `cancel` is triggered.
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
        let tokenizer = tokenizer.clone();
        let text = try_to_string("the text to encode", text)?;
        self.run(cancel, move |stopped| tokenizer.encode_until(&text, options, stopped))
    }

    /// Runs [`RenderedChat::tokens`], stopping if `cancel` is triggered.
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
        let (tokenizer, chat) = (tokenizer.clone(), chat.try_clone().map_err(text_error)?);
        self.run(cancel, move |stopped| chat.tokens_until(&tokenizer, stopped))
    }

    /// Runs `work` on a thread. `work` polls its argument, which returns true once it should stop.
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
            // The receiver is gone after a cancellation.
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

/// Returns true if a text of `bytes` bytes is encoded on the caller's thread: short texts, and all texts
/// without threads.
fn is_inline(bytes: usize) -> bool {
    bytes <= INLINE_BYTES_MAX || cfg!(target_family = "wasm")
}

/// Converts a text error. A cancellation becomes [`EngineError::Cancelled`].
pub(crate) fn text_error(error: TextError) -> EngineError {
    match error {
        TextError::TemplateCancelled | TextError::EncodingCancelled => EngineError::Cancelled,
        TextError::OutOfMemory { bytes } => OutOfMemory { what: "tokenizing a text", bytes }.into(),
        error => EngineError::text(error),
    }
}
