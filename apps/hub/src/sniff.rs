//! Detection of file kinds by their first bytes.

use crate::bytes::ByteSize;
use std::io::Read;
use std::path::Path;

const HEAD_BYTES: u64 = 4096;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// Nestling store.
    Store,
    /// GGUF file.
    Gguf,
    /// Safetensors file, a part of a checkpoint.
    Safetensors,
    /// PDF document.
    Pdf,
    /// Zip archive, as PyTorch writes checkpoints.
    Zip,
    /// Text in UTF-8.
    Text,
    /// Any other kind.
    Other,
}

/// Kind and size of an examined file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SniffedFile {
    /// Kind of the file.
    pub kind: FileKind,
    /// Size of the file in bytes.
    pub bytes: u64,
}

fn kind(head: &[u8], length: u64) -> FileKind {
    let header = head.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // A character that is split at the end of the examined bytes is valid.
    let text = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && length > head.len() as u64,
    };
    match head {
        [0x89, b'N', b'E', b'S', b'T', b'\r', b'\n', ..] => FileKind::Store,
        [b'G', b'G', b'U', b'F', ..] => FileKind::Gguf,
        [b'%', b'P', b'D', b'F', b'-', ..] => FileKind::Pdf,
        [b'P', b'K', 3, 4, ..] => FileKind::Zip,
        [_, _, _, _, _, _, _, _, b'{', ..] if header > 1 && header < length => {
            FileKind::Safetensors
        }
        _ if text && !head.contains(&0) => FileKind::Text,
        _ => FileKind::Other,
    }
}

/// Returns true if a file starts with the GGUF magic number.
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

impl SniffedFile {
    /// Examines the file at `path`. Returns `None` if it cannot be read or is not a regular file.
    pub fn at(path: &Path) -> Option<Self> {
        let file = std::fs::File::open(path).ok()?;
        let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let mut head = Vec::new();
        file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
        Some(Self { kind: kind(&head, bytes), bytes })
    }

    /// Describes the kind in words that follow "is".
    pub fn describe(self) -> String {
        let size = ByteSize(self.bytes);
        match self.kind {
            _ if self.bytes == 0 => "an empty file".into(),
            FileKind::Store => "a store".into(),
            FileKind::Gguf => "a GGUF file".into(),
            FileKind::Safetensors => "a safetensors file".into(),
            FileKind::Pdf => "a PDF document".into(),
            FileKind::Zip => "a zip archive, as PyTorch writes them".into(),
            FileKind::Text => format!("a text file of {size}"),
            FileKind::Other => format!("a file of {size} in an unknown format"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_by_their_first_bytes() {
        let mut safetensors = 20u64.to_le_bytes().to_vec();
        safetensors.extend(b"{\"a\":{\"dtype\":\"F32\"}}");
        for (head, expected) in [
            (&b"\x89NEST\r\n\x1a"[..], FileKind::Store),
            (b"GGUF\x03\0\0\0", FileKind::Gguf),
            (&safetensors, FileKind::Safetensors),
            (b"%PDF-1.7\n\xe2\xe3", FileKind::Pdf),
            (b"PK\x03\x04\x14\0", FileKind::Zip),
            ("not a model, größer".as_bytes(), FileKind::Text),
            (b"\x01\x02\xff\xfe\0\0", FileKind::Other),
            (b"text with \0 in it", FileKind::Other),
        ] {
            assert_eq!(kind(head, head.len() as u64), expected, "{head:?}");
        }
        // The text ends within a character.
        let cut = &"größer".as_bytes()[..3];
        assert_eq!((kind(cut, 100), kind(cut, 3)), (FileKind::Text, FileKind::Other));
    }
}
