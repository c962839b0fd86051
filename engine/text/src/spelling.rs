//! Mapping from the text of a token to bytes, for vocabularies whose tokens decode independently.

use serde_json::Value;

/// Decoder that treats each token alone.
#[derive(Debug)]
pub(super) enum Spelling {
    /// Byte-level (GPT-2): each character stands for one byte.
    ByteLevel(Box<[Option<u8>; ALPHABET]>),
    /// Byte fallback (Gemma): `<0xF0>` is a byte. All other tokens are text with one replacement, such as `▁`
    /// by a space.
    ByteFallback {
        /// Text to replace.
        from: String,
        /// Replacement.
        to: String,
    },
}

/// Number of code points that may stand for bytes.
const ALPHABET: usize = 324;

impl Spelling {
    /// Returns the spelling that a `decoder` implements, if it decodes each token alone. Decoders of Llama's
    /// kind do not: they remove a space from the start of a text.
    pub fn of(decoder: Option<&Value>) -> Option<Self> {
        let decoder = decoder?;
        let steps = match kind(decoder)? {
            "Sequence" => decoder.get("decoders")?.as_array()?.as_slice(),
            _ => std::slice::from_ref(decoder),
        };
        if steps.iter().all(|step| kind(step) == Some("ByteLevel")) {
            return Some(Self::ByteLevel(Box::new(byte_alphabet())));
        }
        let [replace, fallback, fuse] = steps else { return None };
        if [kind(replace)?, kind(fallback)?, kind(fuse)?] != ["Replace", "ByteFallback", "Fuse"] {
            return None;
        }
        let from =
            replace.get("pattern")?.get("String")?.as_str().filter(|from| !from.is_empty())?;
        let to = replace.get("content")?.as_str()?;
        Some(Self::ByteFallback { from: from.into(), to: to.into() })
    }

    /// Returns the bytes of a token's text.
    pub fn bytes(&self, text: &str) -> Box<[u8]> {
        let bytes = match self {
            Self::ByteLevel(alphabet) => {
                let byte = |character: char| alphabet.get(character as usize).copied().flatten();
                // A character outside the alphabet: the text is literal, as in added tokens.
                text.chars().map(byte).collect::<Option<_>>().unwrap_or_else(|| text.into())
            }
            Self::ByteFallback { from, to } => match named_byte(text) {
                Some(byte) => vec![byte],
                None => text.replace(from, to).into_bytes(),
            },
        };
        bytes.into_boxed_slice()
    }
}

fn kind(decoder: &Value) -> Option<&str> {
    decoder.get("type").and_then(Value::as_str)
}

/// Parses a byte token such as `<0xF0>`.
fn named_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_digits = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_digits.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns the characters that stand for bytes.
pub(super) fn byte_characters() -> impl Iterator<Item = char> {
    let alphabet = byte_alphabet();
    let stands =
        move |&character: &char| alphabet.get(character as usize).is_some_and(Option::is_some);
    ('\0'..).take(ALPHABET).filter(stands)
}

/// Builds GPT-2's alphabet: printable Latin-1 bytes map to themselves, the other 68 to characters from
/// U+0100.
fn byte_alphabet() -> [Option<u8>; ALPHABET] {
    let mut alphabet = [None; ALPHABET];
    let mut next = 256;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let place = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        if let Some(slot) = alphabet.get_mut(place) {
            *slot = Some(byte);
        }
    }
    alphabet
}
