//! What a file is that is not what a command takes, by its first bytes.

use crate::bytes::ByteSize;
use crate::failure::Failure;
use std::io::Read;
use std::path::Path;

/// Bytes that are looked at.
const FRONT_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Store,
    Gguf,
    Safetensors,
    Pdf,
    Zip,
    Text,
    Other,
}

fn kind(front: &[u8], length: u64) -> Kind {
    let header = front.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // A character that is cut off at the end of what was read is no fault.
    let text = match std::str::from_utf8(front) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && length > front.len() as u64,
    };
    match front {
        [0x89, b'N', b'E', b'S', b'T', b'\r', b'\n', ..] => Kind::Store,
        [b'G', b'G', b'U', b'F', ..] => Kind::Gguf,
        [b'%', b'P', b'D', b'F', b'-', ..] => Kind::Pdf,
        [b'P', b'K', 3, 4, ..] => Kind::Zip,
        [_, _, _, _, _, _, _, _, b'{', ..] if header > 1 && header < length => Kind::Safetensors,
        _ if text && !front.contains(&0) => Kind::Text,
        _ => Kind::Other,
    }
}

/// Kind and length of a file; none where it cannot be read.
fn look(path: &Path) -> Option<(Kind, u64)> {
    let file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    let mut front = Vec::new();
    file.take(FRONT_BYTES).read_to_end(&mut front).ok()?;
    Some((kind(&front, length), length))
}

/// Whether a file begins as GGUF files do.
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

/// What a file is, in words that follow "is"; none where it cannot be read.
pub fn words(path: &Path) -> Option<String> {
    let (kind, length) = look(path)?;
    let size = ByteSize(length);
    Some(match kind {
        _ if length == 0 => "an empty file".into(),
        Kind::Store => "a store".into(),
        Kind::Gguf => "a GGUF file".into(),
        Kind::Safetensors => "a safetensors file".into(),
        Kind::Pdf => "a PDF document".into(),
        Kind::Zip => "a zip archive, as PyTorch writes them".into(),
        Kind::Text => format!("a text file of {size}"),
        Kind::Other => format!("a file of {size} in a format that is not known here"),
    })
}

/// The refusal of a file where a checkpoint is asked for; none for what is no file.
pub fn no_checkpoint(path: &Path) -> Option<Failure> {
    let (kind, _) = look(path)?;
    let (shown, what) = (path.display(), words(path)?);
    Some(match kind {
        Kind::Store => Failure::new(format!("{shown} is a store already"))
            .advise("run it as it is, or give --budget SIZE to make a smaller store of it"),
        Kind::Safetensors => Failure::new(format!("{shown} is {what}, a part of a checkpoint"))
            .advise("name the folder with config.json, tokenizer.json and *.safetensors"),
        _ => Failure::new(format!(
            "{shown} is {what}, neither a GGUF file nor the folder of a checkpoint"
        ))
        .advise(TAKEN),
    })
}

/// What can be converted.
pub const TAKEN: &str = "name a GGUF file, or a folder with config.json, tokenizer.json and \
                         *.safetensors, as downloaded from the Hugging Face Hub";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_by_their_first_bytes() {
        let mut safetensors = 20u64.to_le_bytes().to_vec();
        safetensors.extend(b"{\"a\":{\"dtype\":\"F32\"}}");
        for (front, expected) in [
            (&b"\x89NEST\r\n\x1a"[..], Kind::Store),
            (b"GGUF\x03\0\0\0", Kind::Gguf),
            (&safetensors, Kind::Safetensors),
            (b"%PDF-1.7\n\xe2\xe3", Kind::Pdf),
            (b"PK\x03\x04\x14\0", Kind::Zip),
            ("not a model, größer".as_bytes(), Kind::Text),
            (b"\x01\x02\xff\xfe\0\0", Kind::Other),
            (b"text with \0 in it", Kind::Other),
        ] {
            assert_eq!(kind(front, front.len() as u64), expected, "{front:?}");
        }
        // Cut within a character.
        let cut = &"größer".as_bytes()[..3];
        assert_eq!((kind(cut, 100), kind(cut, 3)), (Kind::Text, Kind::Other));
    }
}
