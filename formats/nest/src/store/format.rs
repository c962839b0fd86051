//! The numbers of the format. `FORMAT.md` has the same table, and a test compares the two.

/// First eight bytes of every file of a store; like PNG's, they show files mangled as text.
pub const MAGIC: [u8; 8] = *b"\x89NEST\r\n\x1a";
/// The version of stores whose matrices are floats and the nested code.
pub const VERSION_NESTED: u32 = 1;
/// The version of stores with scaled integers, and the newest that this code reads.
pub const VERSION_SCALED: u32 = 2;
/// Bytes of the header; the index follows at once.
pub const HEADER_BYTES: usize = 128;
/// Smallest alignment of extents: the block that most disks read past the page cache.
pub const ALIGNMENT_MIN: u64 = 512;
/// Largest alignment of extents.
pub const ALIGNMENT_MAX: u64 = 16 << 20;
/// Alignment of small stores unless the plan says otherwise.
pub const ALIGNMENT_SMALL: u64 = 512;
/// Alignment of other stores unless the plan says otherwise.
pub const ALIGNMENT_DEFAULT: u64 = 16 << 10;
/// Stores below this many bytes are small.
pub const SMALL_STORE_BYTES: u64 = 256 << 20;
/// Parts of an extent begin at multiples of this.
pub const PART_ALIGNMENT: usize = 64;
/// Most planes, hence extents, of a group.
pub const PLANES: usize = 5;

/// Bytes of the index's head, which holds its counts.
pub const INDEX_HEAD_BYTES: usize = 48;
/// Bytes of a shard record.
pub const SHARD_RECORD_BYTES: usize = 8;
/// Bytes of a section record.
pub const SECTION_RECORD_BYTES: usize = 16;
/// Bytes of a codec record.
pub const CODEC_RECORD_BYTES: usize = 8;
/// Bytes of a group record.
pub const GROUP_RECORD_BYTES: usize = 32;
/// Bytes of a matrix record.
pub const MATRIX_RECORD_BYTES: usize = 24;
/// Bytes of a float tensor record.
pub const TENSOR_RECORD_BYTES: usize = 16;
/// Bytes of an extent record.
pub const EXTENT_RECORD_BYTES: usize = 48;
/// Bytes of a record of what was measured of a matrix.
pub const MEASURE_RECORD_BYTES: usize = 20;

/// Stands for "none" in a u32 field, and as a bit pattern for "not measured" in an f32 field.
pub const NONE: u32 = u32::MAX;
/// Longest name of an asset or a section, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest index.
pub const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Longest asset.
pub const ASSET_BYTES_MAX: u64 = crate::limits::MAX_ASSET_BYTES;
/// Most shards of a store.
pub const SHARDS_MAX: u32 = 99_999;

/// Group kind: a named file such as the tokenizer.
pub const GROUP_ASSET: u8 = 0;
/// Group kind: float tensors of a layer, or of the model.
pub const GROUP_FLOATS: u8 = 1;
/// Group kind: the token embedding.
pub const GROUP_EMBEDDING: u8 = 2;
/// Group kind: the output head.
pub const GROUP_HEAD: u8 = 3;
/// Group kind: the matrices of a layer that every token uses.
pub const GROUP_DENSE: u8 = 4;
/// Group kind: one expert's gate, up and down.
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
