//! How far one read of a plain file has come, whoever carries it out.

use std::io;
use std::ops::Range;

use super::options::RETRIES_MAX;
use super::plain::Place;

/// A read that may take several calls of the system.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    /// Where it begins in the file.
    offset: u64,
    length: usize,
    /// The bytes that matter.
    plane: Range<usize>,
    block: usize,
    /// Bytes that are there, in whole blocks.
    done: usize,
    retries: usize,
}

/// What follows from one call of the system.
#[derive(Debug)]
pub(super) enum Progress {
    /// All that matters is there.
    Complete,
    /// Another call is needed.
    Again,
    /// The system does not read this file in this way.
    Refused,
    /// It cannot be read.
    Failed(io::Error),
}

impl Transfer {
    pub fn new(place: &Place<'_>) -> Self {
        Self {
            offset: place.offset,
            length: place.length,
            plane: place.plane.clone(),
            block: place.block,
            done: 0,
            retries: 0,
        }
    }

    /// Where the next call begins in the file, and what it fills of the buffer.
    pub fn next(&self) -> (u64, Range<usize>) {
        (self.offset + self.done as u64, self.done..self.length)
    }

    /// The bytes that matter.
    pub fn plane(&self) -> Range<usize> {
        self.plane.clone()
    }

    /// Takes what one call answered: how many bytes it read.
    pub fn advance(&mut self, answer: io::Result<usize>) -> Progress {
        let count = match answer {
            Ok(count) => count,
            Err(error) => return self.after_error(error),
        };
        let reached = self.done + count;
        if reached >= self.plane.end {
            return Progress::Complete;
        }
        let done = reached - reached % self.block;
        if done == self.done {
            // Not a block more: the file has ended.
            return Progress::Failed(io::ErrorKind::UnexpectedEof.into());
        }
        self.done = done;
        Progress::Again
    }

    fn after_error(&mut self, error: io::Error) -> Progress {
        use io::ErrorKind::{Interrupted, InvalidInput, Unsupported, WouldBlock};
        match error.kind() {
            Interrupted | WouldBlock if self.retries < RETRIES_MAX => {
                self.retries += 1;
                Progress::Again
            }
            InvalidInput | Unsupported if self.block > 1 => Progress::Refused,
            _ => Progress::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Progress, RETRIES_MAX, Transfer};
    use std::io;

    fn transfer() -> Transfer {
        let (offset, length, plane, block) = (1024, 4096, 64..3000, 512);
        Transfer { offset, length, plane, block, done: 0, retries: 0 }
    }

    fn error(kind: io::ErrorKind) -> io::Result<usize> {
        Err(kind.into())
    }

    #[test]
    fn short_reads_go_on_at_whole_blocks() {
        let mut transfer = transfer();
        assert_eq!(transfer.next(), (1024, 0..4096));
        assert!(matches!(transfer.advance(Ok(1300)), Progress::Again));
        assert_eq!(transfer.next(), (2048, 1024..4096));
        assert!(matches!(transfer.advance(Ok(512)), Progress::Again));
        // The file may end after the plane, within the last block.
        assert!(matches!(transfer.advance(Ok(3000 - 1536)), Progress::Complete));
    }

    #[test]
    fn the_end_of_the_file_is_an_error_and_no_loop() {
        for count in [0, 511] {
            let end = transfer().advance(Ok(count));
            assert!(matches!(end, Progress::Failed(error)
                if error.kind() == io::ErrorKind::UnexpectedEof));
        }
    }

    #[test]
    fn interruptions_go_on_and_not_for_ever() {
        let mut transfer = transfer();
        for _ in 0..RETRIES_MAX {
            let again = transfer.advance(error(io::ErrorKind::Interrupted));
            assert!(matches!(again, Progress::Again));
        }
        let end = transfer.advance(error(io::ErrorKind::Interrupted));
        assert!(matches!(end, Progress::Failed(_)));
    }

    #[test]
    fn refusals_of_direct_reads_are_no_errors() {
        let refused = transfer().advance(error(io::ErrorKind::InvalidInput));
        assert!(matches!(refused, Progress::Refused));
        let mut cached = Transfer { block: 1, ..transfer() };
        assert!(matches!(cached.advance(error(io::ErrorKind::InvalidInput)), Progress::Failed(_)));
        let failed = transfer().advance(Err(io::Error::from_raw_os_error(5)));
        assert!(matches!(failed, Progress::Failed(error) if error.raw_os_error() == Some(5)));
    }
}
