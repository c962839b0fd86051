//! Constants of the format. `FORMAT.md` has the same table, and a test compares the two.

/// First eight bytes of each file of a store. Like PNG's signature, they reveal files damaged by text
/// conversion.
pub const MAGIC: [u8; 8] = *b"\x89NEST\r\n\x1a";
/// Format version of stores whose matrices are floats or nested codes.
pub const VERSION_NESTED: u32 = 1;
/// Format version of stores with scaled integers; the newest supported version.
pub const VERSION_SCALED: u32 = 2;
/// Size of the header in bytes; the index follows directly.
pub const HEADER_BYTES: usize = 128;
/// Minimum alignment of extents: the block size of direct reads on most disks.
pub const ALIGNMENT_MIN: u64 = 512;
/// Maximum alignment of extents.
pub const ALIGNMENT_MAX: u64 = 16 << 20;
/// Default alignment of stores below [`SMALL_STORE_BYTES`].
pub const ALIGNMENT_SMALL: u64 = 512;
/// Default alignment of larger stores.
pub const ALIGNMENT_DEFAULT: u64 = 16 << 10;
/// Size in bytes from which a store gets the larger default alignment.
pub const SMALL_STORE_BYTES: u64 = 256 << 20;
/// Alignment of the parts of an extent in bytes.
pub const PART_ALIGNMENT: usize = 64;
/// Maximum number of planes, and thus of extents, per group.
pub const PLANES: usize = 5;

/// Size in bytes of the index's head, which holds the counts.
pub const INDEX_HEAD_BYTES: usize = 48;
/// Size of a shard record in bytes.
pub const SHARD_RECORD_BYTES: usize = 8;
/// Size of a section record in bytes.
pub const SECTION_RECORD_BYTES: usize = 16;
/// Size of a codec record in bytes.
pub const CODEC_RECORD_BYTES: usize = 8;
/// Size of a group record in bytes.
pub const GROUP_RECORD_BYTES: usize = 32;
/// Size of a matrix record in bytes.
pub const MATRIX_RECORD_BYTES: usize = 24;
/// Size of a float tensor record in bytes.
pub const TENSOR_RECORD_BYTES: usize = 16;
/// Size of an extent record in bytes.
pub const EXTENT_RECORD_BYTES: usize = 48;
/// Size in bytes of a record of a matrix's measurements.
pub const MEASURE_RECORD_BYTES: usize = 20;

/// Value of absent u32 fields, and bit pattern of unmeasured f32 fields.
pub const NONE: u32 = u32::MAX;
/// Maximum length of an asset or section name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum size of an index in bytes.
pub const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Maximum size of an asset in bytes.
pub const ASSET_BYTES_MAX: u64 = crate::limits::MAX_ASSET_BYTES;
/// Maximum number of shards in a store.
pub const SHARDS_MAX: u32 = 99_999;

/// Group kind: a named file such as the tokenizer.
pub const GROUP_ASSET: u8 = 0;
/// Group kind: float tensors of a layer, or of the model.
pub const GROUP_FLOATS: u8 = 1;
/// Group kind: the token embedding.
pub const GROUP_EMBEDDING: u8 = 2;
/// Group kind: the output head.
pub const GROUP_HEAD: u8 = 3;
/// Group kind: the dense matrices of a layer, which all tokens use.
pub const GROUP_DENSE: u8 = 4;
/// Group kind: gate, up and down of an expert.
pub const GROUP_EXPERT: u8 = 5;

/// Matrix encoding: the nested code.
pub const ENCODING_NESTED: u8 = 0;
/// Matrix encoding: 32-bit floats, row by row.
pub const ENCODING_F32: u8 = 1;
/// Matrix encoding: IEEE half precision, row by row.
pub const ENCODING_F16: u8 = 2;
/// Matrix encoding: bfloat16, row by row.
pub const ENCODING_BF16: u8 = 3;

/// Codec id of the nested code.
pub const CODEC_NESTED: u32 = 1;
/// Codec id of scaled integers.
pub const CODEC_SCALED: u32 = 2;

/// First eight bytes of the journal of an unfinished store.
pub const JOURNAL_MAGIC: [u8; 8] = *b"\x89NESTJ\r\n";
