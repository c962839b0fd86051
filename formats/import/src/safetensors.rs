//! The header of a safetensors file: a `u64` length, then JSON. The tensors' bytes follow without gaps.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::ImportError;
use crate::json::{UniqueMap, duplicate};
use crate::limits::{
    MAX_SAFETENSORS_HEADER_BYTES, MAX_SAFETENSORS_METADATA, MAX_TENSOR_RANK, MAX_TENSORS,
};
use nestling_formats::DType;
use nestling_formats::memory::try_with_capacity;

/// Size in bytes of the length field before the JSON.
pub const PREFIX_BYTES: u64 = 8;

/// Name of the header member that is not a tensor.
const METADATA: &str = "__metadata__";

/// Location of a tensor in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; all above 0.
    pub shape: Vec<u64>,
    /// Byte offset of the tensor in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A validated header. Its tensors cover the rest of the file without gaps or overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetensorsHeader {
    /// Names and locations, in file order.
    pub tensors: Vec<(String, TensorEntry)>,
}

/// Returns the length of the JSON from the first eight bytes of a file of `file_bytes` bytes.
///
/// # Errors
/// Returns an error if the header does not fit into the file or exceeds the limit.
pub fn header_length(file: &str, prefix: [u8; 8], file_bytes: u64) -> Result<u64, ImportError> {
    let length = u64::from_le_bytes(prefix);
    if length > MAX_SAFETENSORS_HEADER_BYTES {
        return Err(ImportError::Limit {
            file: file.into(),
            what: "the length of the header".into(),
            found: length,
            limit: MAX_SAFETENSORS_HEADER_BYTES,
        });
    }
    let rest = file_bytes.saturating_sub(PREFIX_BYTES);
    if length < 2 || length > rest {
        let expected = format!("a length from 2 to {rest}");
        return Err(malformed(file, "header length", 0, expected, length));
    }
    Ok(length)
}

impl SafetensorsHeader {
    /// Parses the JSON header of a file of `file_bytes` bytes.
    ///
    /// ```
    /// use nestling_import::safetensors::{PREFIX_BYTES, SafetensorsHeader};
    ///
    /// let json = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    /// let file_bytes = PREFIX_BYTES + json.len() as u64 + 8;
    /// let header = SafetensorsHeader::parse("model.safetensors", json, file_bytes)?;
    /// let (name, entry) = &header.tensors[0];
    /// assert_eq!(name, "bias");
    /// assert_eq!(entry.length, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the JSON is invalid, has duplicate names or an unsupported type, or if its tensors
    /// do not cover the rest of the file exactly.
    pub fn parse(file: &str, json: &[u8], file_bytes: u64) -> Result<Self, ImportError> {
        if json.first() != Some(&b'{') {
            let found = json.first().map_or("the end".into(), |byte| format!("byte {byte:#04x}"));
            return Err(malformed(file, "header", PREFIX_BYTES, "`{`".into(), found));
        }
        let raw: RawHeader = serde_json::from_slice(json)
            .map_err(|source| ImportError::Json { file: file.into(), source })?;
        let data_start = PREFIX_BYTES + json.len() as u64;
        let mut tensors = raw.0;
        // An unstable sort allocates nothing; names make the order unique.
        tensors.sort_unstable_by(|(a, one), (b, two)| {
            (one.data_offsets, a).cmp(&(two.data_offsets, b))
        });
        let mut expected = data_start;
        let mut checked = try_with_capacity("the header of a safetensors file", tensors.len())?;
        for (name, tensor) in tensors {
            let entry = tensor.check(file, &name, data_start, expected, file_bytes)?;
            expected = entry.offset + entry.length;
            checked.push((name, entry));
        }
        if expected != file_bytes {
            let found = format!("{} more bytes", file_bytes.saturating_sub(expected));
            return Err(malformed(file, "tensor data", expected, "the file's end".into(), found));
        }
        Ok(Self { tensors: checked })
    }
}

fn malformed(
    file: &str,
    what: &str,
    offset: u64,
    expected: String,
    found: impl ToString,
) -> ImportError {
    let found = found.to_string();
    ImportError::Malformed { file: file.into(), what: what.into(), offset, expected, found }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    #[serde(deserialize_with = "dimensions")]
    shape: Vec<u64>,
    /// Byte range, relative to the start of the data.
    data_offsets: (u64, u64),
}

/// Reads the dimensions of a tensor, at most one more than the limit.
fn dimensions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    struct Dimensions;
    impl<'de> Visitor<'de> for Dimensions {
        type Value = Vec<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of dimensions")
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<u64>, S::Error> {
            let mut shape = Vec::new();
            while let Some(size) = list.next_element()? {
                if shape.len() <= MAX_TENSOR_RANK {
                    shape.push(size);
                }
            }
            Ok(shape)
        }
    }
    deserializer.deserialize_seq(Dimensions)
}

impl RawTensor {
    /// Checks a tensor that must start at `expected` of its file.
    fn check(
        self,
        file: &str,
        name: &str,
        data_start: u64,
        expected: u64,
        file_bytes: u64,
    ) -> Result<TensorEntry, ImportError> {
        let (begin, end) = self.data_offsets;
        let what = format!("tensor `{name}`");
        let wrong = |expected: String, found: String| {
            malformed(file, &what, data_start.saturating_add(begin), expected, found)
        };
        let dtype = [DType::F32, DType::F16, DType::Bf16, DType::U8]
            .into_iter()
            .find(|dtype| dtype.name() == self.dtype)
            .ok_or_else(|| ImportError::Unsupported {
                file: file.into(),
                key: name.into(),
                found: format!("of type {}", self.dtype.chars().take(20).collect::<String>()),
                supported: "supported: F32, F16, BF16, and U8 of MXFP4".into(),
            })?;
        if self.shape.len() > MAX_TENSOR_RANK {
            let found = format!("more than {MAX_TENSOR_RANK}");
            return Err(wrong(format!("at most {MAX_TENSOR_RANK} dimensions"), found));
        }
        if self.shape.contains(&0) {
            // Empty tensors are valid in the format; they are saved for modules of width 0.
            return Err(ImportError::Unsupported {
                file: file.into(),
                key: name.into(),
                found: format!("of shape {:?}", self.shape),
                supported: "supported: one element or more".into(),
            });
        }
        let bytes = self.shape.iter().try_fold(dtype.bytes() as u64, |n, d| n.checked_mul(*d));
        let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else {
            let found = format!("{:?}", self.shape);
            return Err(wrong("a shape of at least one and at most 2^64 bytes".into(), found));
        };
        if end.checked_sub(begin) != Some(bytes) {
            let expected = format!("{bytes} bytes for {dtype} {:?}", self.shape);
            return Err(wrong(expected, format!("bytes {begin} to {end}")));
        }
        let offset = data_start.checked_add(begin);
        let Some(offset) = offset.filter(|offset| *offset == expected) else {
            let found = format!("a start at {begin} of the data");
            return Err(wrong(format!("a start at {} of the data", expected - data_start), found));
        };
        if bytes > file_bytes.saturating_sub(offset) {
            let expected = format!("{bytes} bytes");
            let found = format!("{} bytes to the file's end", file_bytes.saturating_sub(offset));
            return Err(wrong(expected, found));
        }
        Ok(TensorEntry { dtype, shape: self.shape, offset, length: bytes })
    }
}

/// Tensors by name, in the order of the JSON.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RawHeader, M::Error> {
                let mut tensors = Vec::new();
                let mut metadata = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == METADATA {
                        let value = map.next_value::<UniqueMap<String>>()?;
                        if metadata.replace(()).is_some() {
                            return Err(M::Error::custom(format_args!("duplicate name `{key}`")));
                        }
                        if value.0.len() > MAX_SAFETENSORS_METADATA {
                            let limit = MAX_SAFETENSORS_METADATA;
                            let message = format_args!("more than {limit} members of `{key}`");
                            return Err(M::Error::custom(message));
                        }
                        continue;
                    }
                    if tensors.len() == MAX_TENSORS {
                        let message = format_args!("more than {MAX_TENSORS} tensors");
                        return Err(M::Error::custom(message));
                    }
                    tensors.try_reserve(1).map_err(M::Error::custom)?;
                    tensors.push((key, map.next_value()?));
                }
                match duplicate(&tensors) {
                    Some(name) => Err(M::Error::custom(format_args!("duplicate name `{name}`"))),
                    None => Ok(RawHeader(tensors)),
                }
            }
        }
        deserializer.deserialize_map(Header)
    }
}
