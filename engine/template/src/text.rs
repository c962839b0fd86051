//! Shared text: slices do not copy.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::error::Fault;
use super::limits::ALLOCATION_WORK;
use super::meter::{Charge, Meter};

/// Overhead of an allocation in bytes.
const OVERHEAD: usize = 64;

/// Capacity in bytes up to which appending reserves twice the required size.
const APPEND_ROOM_MAX: usize = 1 << 16;

/// A text, or a slice of one.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    buffer: Buffer,
    start: u32,
    end: u32,
}

#[derive(Debug, Clone)]
enum Buffer {
    Literal(Arc<String>),
    Made(Rc<TextBuffer>),
}

/// Returns a slice of a text between positions that were found in it.
pub(crate) fn between(text: &str, part: Range<usize>) -> Result<&str, Fault> {
    text.get(part).ok_or_else(|| Fault::broken("positions in a text are borders of characters"))
}

impl Text {
    /// Creates a text of the template, which is shorter than 4 GiB.
    pub(crate) fn literal(text: &Arc<String>) -> Self {
        Self { buffer: Buffer::Literal(Arc::clone(text)), start: 0, end: text.len() as u32 }
    }

    /// Copies `text`.
    pub(crate) fn copy(meter: &Meter<'_>, text: &str) -> Result<Self, Fault> {
        let mut buffer = TextBuffer::with_capacity(meter, text.len())?;
        buffer.push(meter, text)?;
        Ok(buffer.finish())
    }

    pub(crate) fn as_str(&self) -> &str {
        let whole = match &self.buffer {
            Buffer::Literal(text) => text,
            Buffer::Made(buffer) => buffer.text.as_str(),
        };
        &whole[self.start as usize..self.end as usize]
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns the bytes from `start` to `end`, both at character boundaries.
    pub(crate) fn part(&self, start: usize, end: usize) -> Self {
        let end = end.min(self.len());
        let start = start.min(end);
        let buffer = self.buffer.clone();
        Self { buffer, start: self.start + start as u32, end: self.start + end as u32 }
    }

    /// Returns the slice of this text that equals `part`, which is a slice of [`Self::as_str`].
    pub(crate) fn part_of(&self, part: &str) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(self.as_str().as_ptr() as usize);
        self.part(start, start.saturating_add(part.len()))
    }

    /// Appends `tail`, in place if the buffer is not shared.
    pub(crate) fn append(mut self, meter: &Meter<'_>, tail: &str) -> Result<Self, Fault> {
        if let Buffer::Made(shared) = &mut self.buffer
            && let Some(buffer) = Rc::get_mut(shared)
            && buffer.text.len() == self.end as usize
        {
            buffer.push(meter, tail)?;
            self.end = buffer.text.len() as u32;
            return Ok(self);
        }
        // Further appends are likely.
        let room = 2 * (self.len() + tail.len());
        let room = if room < APPEND_ROOM_MAX { room.max(64) } else { room / 2 };
        let mut buffer = TextBuffer::with_capacity(meter, room)?;
        buffer.push(meter, self.as_str())?;
        buffer.push(meter, tail)?;
        Ok(buffer.finish())
    }

    pub(crate) fn count(&self, meter: &Meter<'_>) -> Result<usize, Fault> {
        meter.scan(self.len())?;
        let text = self.as_str();
        Ok(if text.is_ascii() { text.len() } else { text.chars().count() })
    }
}

/// A growing text. Bytes are charged before they are allocated.
#[derive(Debug)]
pub(crate) struct TextBuffer {
    text: String,
    charge: Charge,
}

impl TextBuffer {
    pub(crate) fn new(meter: &Meter<'_>) -> Result<Self, Fault> {
        meter.work(ALLOCATION_WORK)?;
        Ok(Self { text: String::new(), charge: meter.charge(OVERHEAD)? })
    }

    pub(crate) fn with_capacity(meter: &Meter<'_>, bytes: usize) -> Result<Self, Fault> {
        if bytes > meter.text_bytes_max() {
            return Err(Fault::Text);
        }
        let charge = meter.charge(OVERHEAD + bytes)?;
        meter.work(ALLOCATION_WORK)?;
        Ok(Self { text: String::with_capacity(bytes), charge })
    }

    #[inline]
    pub(crate) fn push(&mut self, meter: &Meter<'_>, text: &str) -> Result<(), Fault> {
        meter.scan(text.len())?;
        if self.text.capacity() - self.text.len() < text.len() {
            self.grow(meter, text.len())?;
        }
        self.text.push_str(text);
        Ok(())
    }

    pub(crate) fn push_char(&mut self, meter: &Meter<'_>, character: char) -> Result<(), Fault> {
        self.push(meter, character.encode_utf8(&mut [0; 4]))
    }

    /// Appends `text` `count` times.
    pub(crate) fn repeat(
        &mut self,
        meter: &Meter<'_>,
        text: &str,
        count: usize,
    ) -> Result<(), Fault> {
        let bytes = text.len().checked_mul(count).ok_or(Fault::Text)?;
        if self.text.capacity() - self.text.len() < bytes {
            self.grow(meter, bytes)?;
        }
        if bytes > 0 {
            meter.walk(count)?;
            meter.scan(bytes)?;
            (0..count).for_each(|_| self.text.push_str(text));
        }
        Ok(())
    }

    /// Grows the buffer. The old and the new bytes exist at the same time.
    #[cold]
    fn grow(&mut self, meter: &Meter<'_>, more: usize) -> Result<(), Fault> {
        let limit = meter.text_bytes_max();
        let needed = self.text.len().checked_add(more).filter(|needed| *needed <= limit);
        let needed = needed.ok_or(Fault::Text)?;
        let (old, new) = (self.text.capacity(), needed.max(2 * self.text.len()).max(32).min(limit));
        let new = new.max(needed);
        self.charge.add(new)?;
        self.text.reserve_exact(new - self.text.len());
        self.charge.give_back(old);
        Ok(())
    }

    pub(crate) fn finish(self) -> Text {
        let end = self.text.len() as u32;
        Text { buffer: Buffer::Made(Rc::new(self)), start: 0, end }
    }

    pub(crate) fn into_string(self) -> String {
        self.text
    }
}
