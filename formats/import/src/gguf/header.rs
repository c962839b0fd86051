//! The header of a GGUF file: metadata and the tensor table.

use std::collections::HashSet;

use super::BlockType;
use super::cursor::{Cursor, ReadAt};
use super::element_layout::{ElementLayout, element_layout};
use super::metadata::{GgufMetadata, read_key_count, read_keys};
use crate::limits::MAX_GGUF_TENSORS;
use crate::{ElementType, ImportError};
use nestling_formats::memory::{OutOfMemory, try_reserve, try_with_capacity};

const MAGIC: u32 = u32::from_le_bytes(*b"GGUF");

/// Alignment in bytes of the tensors' data, unless `general.alignment` overrides it.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Maximum accepted alignment in bytes.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// Maximum number of dimensions, as in llama.cpp.
const RANK_MAX: u32 = 4;

/// Maximum length of a tensor name in bytes; llama.cpp allows 64.
const NAME_BYTES_MAX: u64 = 128;

/// Minimum size of a tensor entry in bytes: an empty name, one dimension, type and offset.
const ENTRY_BYTES: u64 = 32;

/// A tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name of the tensor.
    pub name: String,
    /// Element type.
    pub element: ElementType,
    /// Dimensions, outermost first, the reverse of the file's order; all above 0.
    pub shape: Vec<u64>,
    /// Byte offset of the tensor in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A validated header. All tensors are within the file, without overlaps.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufHeader {
    /// Metadata keys and values.
    pub metadata: GgufMetadata,
    /// Tensors in file order.
    pub tensors: Vec<GgufTensor>,
    /// Byte offset of the tensors' data in the file.
    pub data_offset: u64,
    /// Divisors of the RoPE frequencies, the contents of `rope_freqs.weight`. [`crate::Checkpoint::open`] reads
    /// them; they are `None` in a header alone.
    pub frequency_divisors: Option<Vec<f32>>,
}

impl GgufHeader {
    /// Reads the header of a file of `file_bytes` bytes. `read` fills a buffer from an offset. It is called
    /// with ascending offsets, once per byte, and for at most [`crate::limits::MAX_GGUF_HEADER_BYTES`] bytes.
    ///
    /// # Errors
    /// Returns an [`ImportError`] that names the key or tensor, and errors of `read`.
    pub fn read(file: &str, file_bytes: u64, read: ReadAt<'_>) -> Result<Self, ImportError> {
        Self::read_within(file, file_bytes, file_bytes, read)
    }

    /// Parses the header from the first bytes of a file of `file_bytes` bytes.
    ///
    /// ```
    /// use nestling_import::gguf::GgufHeader;
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let bytes = std::fs::read(format!("{data}/gguf/qwen3-moe.gguf"))?;
    /// let header = GgufHeader::parse("qwen3-moe.gguf", &bytes, bytes.len() as u64)?;
    /// assert_eq!(header.metadata.text("general.architecture")?, Some("qwen3moe"));
    /// assert!(header.tensors.iter().any(|tensor| tensor.name == "token_embd.weight"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::read`], and [`ImportError::Malformed`] if `bytes` does not contain the whole
    /// header.
    pub fn parse(file: &str, bytes: &[u8], file_bytes: u64) -> Result<Self, ImportError> {
        let mut read = |offset: u64, out: &mut [u8]| {
            let at = usize::try_from(offset).unwrap_or(usize::MAX);
            let part = bytes.get(at..).and_then(|bytes| bytes.get(..out.len()));
            match part {
                Some(part) => out.copy_from_slice(part),
                None => out.fill(0),
            }
            Ok(())
        };
        Self::read_within(file, bytes.len() as u64, file_bytes, &mut read)
    }

    fn read_within(
        file: &str,
        known_bytes: u64,
        file_bytes: u64,
        read: ReadAt<'_>,
    ) -> Result<Self, ImportError> {
        let mut cursor = Cursor::new(file, known_bytes, read);
        check_version(&mut cursor)?;
        let tensor_count = cursor.count("the number of tensors", ENTRY_BYTES, MAX_GGUF_TENSORS)?;
        let key_count = read_key_count(&mut cursor)?;
        let keys = read_keys(&mut cursor, key_count)?;
        let entries = read_entries(&mut cursor, tensor_count)?;
        let header_bytes = cursor.position() as u64;
        let metadata = GgufMetadata::new(file, keys, cursor.into_bytes());
        let alignment = alignment(&metadata)?;
        let data_offset = header_bytes.next_multiple_of(alignment);
        let place = TensorSection { file, file_bytes, data_offset, alignment };
        let tensors = place.tensors(entries)?;
        Ok(Self { metadata, tensors, data_offset, frequency_divisors: None })
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), ImportError> {
    let magic = cursor.u32("the magic number")?;
    if magic != MAGIC {
        return Err(cursor.malformed("the magic number", "GGUF", format!("{magic:#010x}")));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(()),
        _ => {
            let swapped = matches!(version.swap_bytes(), 2 | 3);
            let found =
                if swapped { "one in big-endian order".into() } else { version.to_string() };
            Err(ImportError::Unsupported {
                file: cursor.file().into(),
                key: "the version of the format".into(),
                found,
                supported: "supported: 2 and 3, little-endian".into(),
            })
        }
    }
}

fn alignment(metadata: &GgufMetadata) -> Result<u64, ImportError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.unsigned(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        return Ok(alignment);
    }
    Err(metadata.wrong(KEY, "a power of two up to 1048576"))
}

/// Description of the allocation, for out-of-memory errors.
const TENSORS: &str = "the tensors of a GGUF file";

struct Entry {
    name: String,
    shape: Vec<u64>,
    type_number: u32,
    /// Byte offset relative to the start of the data.
    offset: u64,
}

fn read_entries(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Entry>, ImportError> {
    let mut entries: Vec<Entry> = Vec::new();
    for _ in 0..count {
        let name = cursor.text("a tensor's name", NAME_BYTES_MAX)?;
        let what = format!("tensor `{name}`");
        let rank = cursor.u32(&what)?;
        if rank == 0 || rank > RANK_MAX {
            return Err(cursor.malformed(&what, "1 to 4 dimensions", rank));
        }
        let shape: Result<Vec<u64>, _> = (0..rank).map(|_| cursor.u64(&what)).collect();
        let mut shape = shape?;
        shape.reverse();
        let type_number = cursor.u32(&what)?;
        let offset = cursor.u64(&what)?;
        try_reserve(&mut entries, TENSORS, 1)?;
        entries.push(Entry { name, shape, type_number, offset });
    }
    let (mut seen, count) = (HashSet::new(), entries.len());
    seen.try_reserve(count).map_err(|_| OutOfMemory::of::<&str>(TENSORS, count))?;
    match entries.iter().find(|entry| !seen.insert(entry.name.as_str())) {
        None => Ok(entries),
        Some(entry) => {
            let what = format!("tensor `{}`", entry.name);
            Err(cursor.malformed(&what, "a new name", "one used before"))
        }
    }
}

/// Part of a file that holds the tensors' data.
struct TensorSection<'a> {
    file: &'a str,
    file_bytes: u64,
    data_offset: u64,
    alignment: u64,
}

impl TensorSection<'_> {
    fn tensors(&self, mut entries: Vec<Entry>) -> Result<Vec<GgufTensor>, ImportError> {
        // An unstable sort allocates nothing; names make the order unique.
        entries.sort_unstable_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
        let mut tensors: Vec<GgufTensor> = try_with_capacity(TENSORS, entries.len())?;
        let mut free = self.data_offset;
        for entry in entries {
            let tensor = self.tensor(entry)?;
            if tensor.offset < free {
                let before = tensors.last().map_or("the header", |tensor| &tensor.name);
                let expected = format!("a start at byte {free} or later, behind {before}");
                return Err(self.malformed(&tensor.name, tensor.offset, expected, tensor.offset));
            }
            free = tensor.offset + tensor.length;
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    fn tensor(&self, entry: Entry) -> Result<GgufTensor, ImportError> {
        let Entry { name, shape, type_number, offset } = entry;
        let start = self.data_offset.saturating_add(offset);
        let layout = element_layout(type_number)
            .ok_or_else(|| self.malformed(&name, start, "a known element type", type_number))?;
        let ElementLayout { element, name: type_name, elements, bytes } = layout;
        let Some(element) = element else { return Err(self.unsupported(name, type_name)) };
        let wrong =
            |expected: String, found: String| Err(self.malformed(&name, start, expected, found));
        if !offset.is_multiple_of(self.alignment) {
            return wrong(format!("an offset in steps of {}", self.alignment), offset.to_string());
        }
        // Default: a tensor without dimensions is rejected like one without columns.
        let cols = shape.last().copied().unwrap_or(0);
        if cols == 0 || !cols.is_multiple_of(elements) {
            return wrong(format!("rows of whole blocks of {elements}"), cols.to_string());
        }
        let length = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        let length = length.and_then(|n| (n / elements).checked_mul(bytes));
        let Some(length) = length.filter(|length| *length > 0) else {
            return wrong(
                "a shape of at least one and at most 2^64 bytes".into(),
                format!("{shape:?}"),
            );
        };
        let end = start.checked_add(length);
        if end.is_none_or(|end| end > self.file_bytes) {
            let rest = self.file_bytes.saturating_sub(start);
            return wrong(format!("{length} bytes"), format!("{rest} bytes to the file's end"));
        }
        Ok(GgufTensor { name, element, shape, offset: start, length })
    }

    fn malformed(
        &self,
        tensor: &str,
        offset: u64,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> ImportError {
        ImportError::Malformed {
            file: self.file.into(),
            what: format!("tensor `{tensor}`"),
            offset,
            expected: expected.into(),
            found: found.to_string(),
        }
    }

    fn unsupported(&self, tensor: String, type_name: &str) -> ImportError {
        let names: Vec<&str> = BlockType::ALL.iter().map(|block| block.name()).collect();
        ImportError::Unsupported {
            file: self.file.into(),
            key: tensor,
            found: format!("of type {type_name}"),
            supported: format!("supported: F32, F16, BF16, {}", names.join(", ")),
        }
    }
}
