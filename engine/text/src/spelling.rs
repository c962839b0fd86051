//! How the text of a token spells bytes, in vocabularies whose tokens do not depend on each other.

use serde_json::Value;

/// What a decoder makes of each token by itself.
#[derive(Debug)]
pub(super) enum Spelling {
    /// Every character stands for a byte (GPT-2).
    ByteLevel(Box<[Option<u8>; ALPHABET]>),
    /// `<0xF0>` is a byte, all else is text in which one string stands for another, `▁` for a space
    /// (Gemma).
    ByteFallback {
        /// What is replaced,
        from: String,
        /// and by what.
        to: String,
    },
}

/// Characters that may stand for bytes.
const ALPHABET: usize = 324;

impl Spelling {
    /// What a `decoder` does, if it treats each token alone. Those of Llama's kind do not: they
    /// remove a space from the beginning of a text.
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

    /// The bytes that a token's text spells.
    pub fn bytes(&self, text: &str) -> Box<[u8]> {
        let bytes = match self {
            Self::ByteLevel(alphabet) => {
                let byte = |character: char| alphabet.get(character as usize).copied().flatten();
                // A character that stands for no byte: the text is meant as it is (added tokens).
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

/// `<0xF0>`
fn named_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_digits = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_digits.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The characters that stand for bytes.
pub(super) fn byte_characters() -> impl Iterator<Item = char> {
    let alphabet = byte_alphabet();
    let stands =
        move |&character: &char| alphabet.get(character as usize).is_some_and(Option::is_some);
    ('\0'..).take(ALPHABET).filter(stands)
}

/// GPT-2's alphabet: printable Latin-1 bytes are themselves, the other 68 follow from U+0100.
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
