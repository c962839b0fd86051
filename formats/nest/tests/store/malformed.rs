//! Deliberately invalid stores, each rejected with an error that names the location and the problem.
//!
//! Checksums are recomputed after each change, so that the checks behind them are reached.

use nestling_formats::store::StoreError;
use nestling_formats::store::format::{
    CODEC_RECORD_BYTES, EXTENT_RECORD_BYTES, GROUP_RECORD_BYTES, HEADER_BYTES, INDEX_HEAD_BYTES,
    MATRIX_RECORD_BYTES, SECTION_RECORD_BYTES, SHARD_RECORD_BYTES, TENSOR_RECORD_BYTES,
};

use crate::support::seal::seal;
use crate::support::{bytes_of, open_bytes, small_plan};

/// A store to be damaged, and the counts of its tables.
struct DamagedStore {
    bytes: Vec<u8>,
    shards: usize,
    sections: usize,
    codecs: usize,
    groups: usize,
    matrices: usize,
    tensors: usize,
    extents: usize,
    codec_bytes: usize,
    names: usize,
    parameters: usize,
    index_end: usize,
}

impl DamagedStore {
    fn new() -> Self {
        let bytes = bytes_of(&small_plan());
        let count = |field: usize| {
            let at = HEADER_BYTES + field * 4;
            u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
        };
        let shards = HEADER_BYTES + INDEX_HEAD_BYTES;
        let sections = shards + count(2) * SHARD_RECORD_BYTES;
        let codecs = sections + count(3) * SECTION_RECORD_BYTES;
        let groups = codecs + count(4) * CODEC_RECORD_BYTES;
        let matrices = groups + count(6) * GROUP_RECORD_BYTES;
        let tensors = matrices + count(7) * MATRIX_RECORD_BYTES;
        let extents = tensors + count(8) * TENSOR_RECORD_BYTES;
        let codec_bytes = extents + count(9) * EXTENT_RECORD_BYTES;
        let names = codec_bytes + count(5);
        let parameters = names + count(1);
        let index_end = parameters + count(0);
        Self {
            shards,
            sections,
            codecs,
            groups,
            matrices,
            tensors,
            extents,
            codec_bytes,
            names,
            parameters,
            index_end,
            bytes,
        }
    }

    fn group(&self, number: usize) -> usize {
        self.groups + number * GROUP_RECORD_BYTES
    }

    fn matrix(&self, number: usize) -> usize {
        self.matrices + number * MATRIX_RECORD_BYTES
    }

    fn extent(&self, number: usize) -> usize {
        self.extents + number * EXTENT_RECORD_BYTES
    }

    fn u8(&mut self, at: usize, value: u8) {
        self.bytes[at] = value;
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn add(&mut self, at: usize, value: u32) {
        let old = u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap());
        self.u32(at, old.wrapping_add(value));
    }
}

/// Returns the error of opening a modified store.
fn refuse(sealed: bool, change: impl FnOnce(&mut DamagedStore)) -> StoreError {
    let mut victim = DamagedStore::new();
    change(&mut victim);
    if sealed {
        seal(&mut victim.bytes);
    }
    open_bytes(victim.bytes).unwrap_err()
}

/// Generates a test per entry: a change to a valid store, and the full error message.
macro_rules! malformed {
    ($($name:ident: $change:expr => $message:expr;)*) => {$(
        #[test]
        fn $name() {
            let error = refuse(true, $change);
            assert_eq!(error.to_string(), format!("memory: {}", $message), "{error:?}");
        }
    )*};
}

/// Generates tests like `malformed!`, but without recomputing checksums.
macro_rules! damaged {
    ($($name:ident: $change:expr => $message:expr;)*) => {$(
        #[test]
        fn $name() {
            let error = refuse(false, $change);
            assert_eq!(error.to_string(), format!("memory: {}", $message), "{error:?}");
        }
    )*};
}

const NOT_A_STORE: &str = "not a .nest store (it does not begin with the store's signature)";

damaged! {
    empty_file: |v| v.bytes.clear() => NOT_A_STORE;
    four_bytes: |v| v.bytes.truncate(4) => NOT_A_STORE;
    another_signature: |v| v.u8(1, b'R') => NOT_A_STORE;
    mangled_as_text: |v| { v.bytes.remove(5); } => NOT_A_STORE;
    header_cut: |v| v.bytes.truncate(100) =>
        "ends at byte 100 of 128, within section `header` that ends at byte 128; finish the download, or open it as partial";
    index_cut: |v| v.bytes.truncate(1000) =>
        "ends at byte 1000 of 172032, within section `index` that ends at byte 4096; finish the download, or open it as partial";
    newer_version: |v| v.u32(8, 3) =>
        "store version 3, but this program reads versions 1 to 2; use a matching release, or convert the model again";
    version_zero: |v| v.u32(8, 0) =>
        "store version 0, but this program reads versions 1 to 2; use a matching release, or convert the model again";
    header_flipped: |v| v.u8(40, 1) =>
        "damaged: header (bytes 0..128): its checksum does not match";
    header_checksum_flipped: |v| v.u8(127, 1) =>
        "damaged: header (bytes 0..128): its checksum does not match";
    index_flipped: |v| v.add(v.extent(0) + 24, 1) =>
        "damaged: index (bytes 128..3198): its checksum does not match";
    padding_after_index: |v| v.u8(v.index_end, 1) =>
        "damaged: byte 3198 lies in padding, but is not zero";
}

malformed! {
    header_length: |v| v.u32(12, 64) =>
        "header: header length at byte 12 is 64, expected 128";
    alignment_zero: |v| v.u32(16, 0) =>
        "header: alignment at byte 16 is 0, expected a power of two in 512..=16777216";
    alignment_small: |v| v.u32(16, 256) =>
        "header: alignment at byte 16 is 256, expected a power of two in 512..=16777216";
    alignment_odd: |v| v.u32(16, 12288) =>
        "header: alignment at byte 16 is 12288, expected a power of two in 512..=16777216";
    alignment_huge: |v| v.u32(16, 1 << 31) =>
        "header: alignment at byte 16 is 2147483648, expected a power of two in 512..=16777216";
    alignment_other: |v| v.u32(16, 8192) =>
        "damaged: byte 4096 lies in padding, but is not zero";
    shard_count_zero: |v| v.u32(20, 0) =>
        "header: shard count at byte 20 is 0, expected 1..=99999";
    shard_count_huge: |v| v.u32(20, u32::MAX) =>
        "header: shard count at byte 20 is 4294967295, expected 1..=99999";
    shard_count_two: |v| v.u32(20, 2) =>
        "index: shard count at byte 176 is 1, expected 2";
    shard_number_beyond: |v| v.u32(24, 1) =>
        "header: shard number at byte 24 is 1, expected below 1";
    header_reserved: |v| v.u8(28, 1) =>
        "header: reserved at byte 28 is not zero, expected 0";
    header_reserved_end: |v| v.u8(100, 1) =>
        "header: reserved at byte 100 is not zero, expected 0";
    index_offset: |v| v.u64(48, 4096) =>
        "header: index offset at byte 48 is 4096, expected 128";
    index_length_zero: |v| v.u64(56, 0) =>
        "damaged: byte 128 lies in padding, but is not zero";
    index_length_huge: |v| v.u64(56, u64::MAX) =>
        "header: index length at byte 56 is 18446744073709551615, expected at most 268435456";
    index_length_whole_file: |v| v.u64(56, v.bytes.len() as u64) =>
        "header: index length at byte 56 is 172032, expected less than the shard's 172032 bytes";
    index_length_longer: |v| v.u64(56, (v.index_end - HEADER_BYTES + 1) as u64) =>
        "index: counts at byte 128 is 3070 bytes, expected 3071 bytes";
    index_length_shorter: |v| v.u64(56, (v.index_end - HEADER_BYTES - 1) as u64) =>
        "damaged: byte 3197 lies in padding, but is not zero";
    store_length_zero: |v| v.u64(80, 0) =>
        "header: store length at byte 80 is 0, expected a multiple of the alignment 4096, not 0";
    store_length_odd: |v| v.u64(80, 4097) =>
        "header: store length at byte 80 is 4097, expected a multiple of the alignment 4096, not 0";
    shard_length_zero: |v| v.u64(88, 0) =>
        "header: shard length at byte 88 is 0, expected a multiple of the alignment 4096, not 0";
    shard_length_differs: |v| v.u64(88, 8192) =>
        "header: shard length at byte 88 is 8192, expected all of the store, 172032 bytes";
    trailing_bytes: |v| v.bytes.extend_from_slice(&[0; 4096]) =>
        "header: store length at byte 80 is 172032, expected 176128, the length of the file";
    trailing_byte: |v| v.bytes.push(0) =>
        "header: store length at byte 80 is 172032, expected 172033, the length of the file";
    trailing_bytes_claimed: |v| {
        v.bytes.extend_from_slice(&[0; 4096]);
        let length = v.bytes.len() as u64;
        [80, 88, v.shards].into_iter().for_each(|at| v.u64(at, length));
    } =>
        "header: store length at byte 80 is 176128, expected 172032 where the last extent ends";
}

malformed! {
    parameters_length_huge: |v| v.u32(HEADER_BYTES, u32::MAX) =>
        "index: counts at byte 128 is 4294970349 bytes, expected 3070 bytes";
    extent_count_huge: |v| v.u32(HEADER_BYTES + 36, u32::MAX) =>
        "index: counts at byte 128 is 206158431310 bytes, expected 3070 bytes";
    all_counts_huge: |v| (0..10).for_each(|i| v.u32(HEADER_BYTES + i * 4, u32::MAX)) =>
        "index: counts at byte 128 is 665719930773 bytes, expected 3070 bytes";
    group_count_short: |v| v.add(HEADER_BYTES + 24, u32::MAX) =>
        "index: counts at byte 128 is 3038 bytes, expected 3070 bytes";
    index_reserved: |v| v.u8(HEADER_BYTES + 44, 1) =>
        "index: reserved at byte 172 is not zero, expected 0";
    index_measures_of_some: |v| v.u32(HEADER_BYTES + 40, 1) =>
        "index: measure count at byte 168 is 1, expected 0, or 15 as of matrices";
    shard_table_length: |v| v.u64(v.shards, 4096) =>
        "index: shard lengths at byte 176 is 4096, expected 172032 together";
    shard_table_length_odd: |v| v.u64(v.shards, 5000) =>
        "index: shard length at byte 176 is 5000, expected a multiple of 4096, not 0";
    section_without_extents: |v| v.u32(v.sections + 4, 0) =>
        "section 0: extent count at byte 188 is 0, expected at least 1, together below 2^32";
    section_extents_wrap: |v| v.u32(v.sections + 20, u32::MAX) =>
        "section 1: extent count at byte 204 is 4294967295, expected at least 1, together below 2^32";
    section_extents_beyond: |v| v.add(v.sections + 4 * SECTION_RECORD_BYTES + 4, 1) =>
        "sections: extent count at byte 248 is 41, expected 40 extents together";
    section_end_early: |v| v.u64(v.sections + 8, 8192) =>
        "sections: end at byte 184 is 8192, expected 106496";
    section_names_equal: |v| v.u8(v.names + 1, b'2') =>
        "sections: name at byte 200 is 2, expected a name of its own";
    section_name_strange: |v| v.u8(v.names, b'/') =>
        "index: section name at byte 3152 is /, expected 1 to 255 bytes of letters, digits, '.', '_', '-' or '+', not starting with '.'";
    section_name_long: |v| v.u32(v.sections, 400) =>
        "index: section name at byte 3152 is 400, expected at most the 30 bytes left";
    section_name_empty: |v| v.u32(v.sections, 0) =>
        "index: section name at byte 3152 is , expected 1 to 255 bytes of letters, digits, '.', '_', '-' or '+', not starting with '.'";
    codec_id_unknown: |v| v.u32(v.codecs, 7) =>
        "codec 0: codec id at byte 264 is 7, expected 1 in version 1";
    codec_of_version_two: |v| v.u32(v.codecs, 2) =>
        "codec 0: codec id at byte 264 is 2, expected 1 in version 1";
    version_two_without_scaled_integers: |v| v.u32(8, 2) =>
        "header: version at byte 8 is 2, expected 1 with these codecs";
    codec_length_beyond: |v| v.u32(v.codecs + 4, u32::MAX) =>
        "codec 0: length at byte 268 is 4294967295, expected at most the 128 bytes left";
    codec_length_short: |v| v.add(v.codecs + 12, u32::MAX) =>
        "index: codecs length at byte 280 is 1, expected 0 bytes left over";
    codec_stretch_zero: |v| v.u8(v.codec_bytes + 4, 0) =>
        "codec 0: parameters at byte 3024 is codec: beta_q is 0, expected 16..=32, expected a valid codec";
    codec_tables_many: |v| v.u8(v.codec_bytes + 5, 17) =>
        "codec 0: parameters at byte 3024 is codec: expected 484 elements, found 36, expected a valid codec";
    codec_table_value: |v| v.u8(v.codec_bytes + 8, 0x80) =>
        "codec 0: parameters at byte 3024 is codec: table value is -128, expected -127..=127, expected a valid codec";
}

malformed! {
    group_kind_unknown: |v| v.u8(v.group(2), 6) =>
        "group 2: kind at byte 344 is 6, expected 0..=5";
    group_reserved: |v| v.u8(v.group(2) + 1, 1) =>
        "group 2: reserved at byte 345 is not zero, expected 0";
    group_layer_of_embedding: |v| v.u32(v.group(5) + 4, 0) =>
        "group 5: layer at byte 440 is 0, expected a layer where the kind has one";
    group_layer_missing: |v| v.u32(v.group(7) + 4, u32::MAX) =>
        "group 7: layer at byte 504 is 4294967295, expected a layer where the kind has one";
    group_expert_of_dense: |v| v.u32(v.group(7) + 8, 3) =>
        "group 7: expert at byte 504 is 3, expected an expert where the kind has one";
    group_expert_missing: |v| v.u32(v.group(9) + 8, u32::MAX) =>
        "group 9: expert at byte 568 is 4294967295, expected an expert where the kind has one";
    group_twice: |v| v.u32(v.group(10) + 8, 0) =>
        "group 10: kind at byte 600 is expert 0 of layer 1, as group 9, expected a group of its own";
    group_with_a_name: |v| v.u32(v.group(5) + 12, 1) =>
        "group 5: name length at byte 440 is 1, expected 0 without a name";
    group_matrices_beyond: |v| v.u32(v.group(5) + 16, 4_000_000_000) =>
        "group 5: matrix count at byte 440 is 4000000000, expected at most the 15 left";
    group_matrices_short: |v| v.u32(v.group(11) + 16, 2) =>
        "index: group count at byte 664 is 1 matrices and 0 tensors, expected every record in a group";
    group_tensors_beyond: |v| v.u32(v.group(2) + 20, 6) =>
        "group 2: tensor count at byte 344 is 6, expected at most the 5 left";
    group_empty: |v| { v.u32(v.group(5) + 16, 0); v.u32(v.group(6) + 16, 2) } =>
        "group 5: matrix count at byte 440 is 0, expected at least one matrix or tensor";
    group_frequency_nan: |v| v.u32(v.group(9) + 24, f32::NAN.to_bits()) =>
        "group 9: frequency at byte 592 is NaN, expected a finite number, not negative, or none";
    group_frequency_negative: |v| v.u32(v.group(9) + 24, (-1f32).to_bits()) =>
        "group 9: frequency at byte 592 is -1, expected a finite number, not negative, or none";
    asset_name_climbs: |v| v.bytes[v.names + 5..v.names + 8].copy_from_slice(b"../") =>
        "group 0: asset name at byte 3157 is ../fig.json, expected 1 to 255 bytes of letters, digits, '.', '_', '-' or '+', not starting with '.'";
    asset_name_is_not_text: |v| v.u8(v.names + 6, 0xff) =>
        "group 0: asset name at byte 3157 is c�nfig.json, expected 1 to 255 bytes of letters, digits, '.', '_', '-' or '+', not starting with '.'";
    asset_name_empty: |v| v.u32(v.group(0) + 12, 0) =>
        "group 0: asset name at byte 3157 is , expected 1 to 255 bytes of letters, digits, '.', '_', '-' or '+', not starting with '.'";
    asset_with_matrices: |v| { v.u32(v.group(0) + 16, 1); v.u32(v.group(5) + 16, 0) } =>
        "group 0: matrix kind at byte 664 is Embedding, expected a kind that asset `config.json` may hold";
    names_left_over: |v| v.add(v.group(1) + 12, u32::MAX) =>
        "group 11: names length at byte 3181 is 1, expected 0 bytes left over";
}

malformed! {
    matrix_kind_unknown: |v| v.u8(v.matrix(0), 23) =>
        "matrix 0: kind at byte 664 is 23, expected 0..=22";
    matrix_kind_misplaced: |v| v.u8(v.matrix(0), 6) =>
        "group 5: matrix kind at byte 664 is Gate, expected a kind that embedding may hold";
    matrix_kind_twice: |v| v.u8(v.matrix(7), 6) =>
        "group 9: matrix kind at byte 832 is Gate, expected each kind once";
    matrix_layout_unknown: |v| v.u8(v.matrix(0) + 1, 2) =>
        "matrix 0: layout at byte 665 is 2, expected 0 or 1";
    matrix_encoding_unknown: |v| { v.u8(v.matrix(0) + 2, 4) } =>
        "matrix 0: encoding at byte 666 is 4, expected 0..=3";
    matrix_reserved: |v| v.u8(v.matrix(0) + 3, 1) =>
        "matrix 0: reserved at byte 667 is not zero, expected 0";
    matrix_rows_zero: |v| v.u32(v.matrix(0) + 4, 0) =>
        "matrix 0: rows at byte 668 is 0, expected at least 1";
    matrix_columns_zero: |v| v.u32(v.matrix(0) + 8, 0) =>
        "matrix 0: columns at byte 672 is 0, expected at least 1";
    matrix_rows_more: |v| v.u32(v.matrix(0) + 4, 90) =>
        "extent 5: length at byte 1344 is 1600, expected 1920";
    matrix_rows_huge: |v| v.u32(v.matrix(0) + 4, u32::MAX) =>
        "extent 5: length at byte 1344 is 1600, expected 86167781376";
    matrix_size_overflows: |v| {
        v.u32(v.matrix(3) + 4, u32::MAX);
        v.u32(v.matrix(3) + 8, u32::MAX);
    } =>
        "group 7: sizes at byte 504 is more bytes than can be counted, expected smaller matrices";
    matrix_codec_beyond: |v| v.u32(v.matrix(0) + 12, 2) =>
        "matrix 0: codec at byte 676 is 2, expected below 2";
    matrix_float_with_codec: |v| v.u32(v.matrix(3) + 12, 0) =>
        "matrix 3: codec at byte 748 is 0, expected none for floats";
    matrix_float_in_tiles: |v| v.u8(v.matrix(3) + 1, 0) =>
        "matrix 3: layout at byte 737 is 0, expected 1 for floats";
    matrix_float_in_planes: |v| v.u8(v.matrix(3) + 16, 2) =>
        "matrix 3: levels at byte 752 is [2, 8, 8, 8, 8], expected 8 throughout for floats";
    matrix_level_unknown: |v| v.u8(v.matrix(0) + 16, 5) =>
        "matrix 0: levels at byte 680 is 5, expected 0, 2, 3, 4, 6 or 8";
    matrix_levels_fall: |v| v.u8(v.matrix(0) + 16, 8) =>
        "matrix 0: levels at byte 680 is [8, 3, 4, 6, 8], expected levels that never fall";
    matrix_levels_empty: |v| (16..21).for_each(|i| v.u8(v.matrix(0) + i, 0)) =>
        "matrix 0: levels at byte 680 is [0, 0, 0, 0, 0], expected at least level 2 at the end";
    matrix_level_missing: |v| v.u8(v.matrix(0) + 20, 6) =>
        "extent 34: length at byte 2736 is 1152, expected no plane P8 of embedding";
    tensor_kind_unknown: |v| v.u8(v.tensors, 43) =>
        "tensor 0: kind at byte 1024 is 43, expected 0..=42";
    tensor_kind_twice: |v| v.u8(v.tensors + 32, 1) =>
        "group 3: tensor kind at byte 376 is AttentionNorm, expected each kind once";
    tensor_dtype_unknown: |v| v.u8(v.tensors + 1, 0) =>
        "tensor 0: dtype at byte 1025 is 0, expected 1..=3";
    tensor_rank_zero: |v| v.u8(v.tensors + 2, 0) =>
        "tensor 0: rank at byte 1026 is 0, expected 1 or 2";
    tensor_rank_three: |v| v.u8(v.tensors + 2, 3) =>
        "tensor 0: rank at byte 1026 is 3, expected 1 or 2";
    tensor_shape_zero: |v| v.u32(v.tensors + 4, 0) =>
        "tensor 0: shape at byte 1028 is 0, expected at least 1";
    tensor_shape_hidden: |v| v.u32(v.tensors + 8, 2) =>
        "tensor 0: reserved at byte 1032 is not zero, expected 0";
    tensor_shape_huge: |v| {
        v.u32(v.tensors + 36, u32::MAX);
        v.u32(v.tensors + 40, u32::MAX);
    } =>
        "group 3: sizes at byte 376 is more bytes than can be counted, expected smaller matrices";
}

malformed! {
    extent_group_beyond: |v| v.u32(v.extent(0), 12) =>
        "extent 0: group at byte 1104 is 12, expected below 12";
    extent_plane_beyond: |v| v.u32(v.extent(0) + 4, 5) =>
        "extent 0: plane at byte 1108 is 5, expected 0..=4";
    extent_offset_overlaps: |v| v.u64(v.extent(2) + 8, 8192) =>
        "extent 2: offset at byte 1200 is 8192, expected 16384";
    extent_offset_leaves_a_gap: |v| v.add(v.extent(2) + 8, 4096) =>
        "extent 2: offset at byte 1200 is 20480, expected 16384";
    extent_offset_beyond: |v| v.u64(v.extent(2) + 8, u64::MAX) =>
        "extent 2: offset at byte 1200 is 18446744073709551615, expected 16384";
    extent_offset_unaligned: |v| v.add(v.extent(0) + 8, 1) =>
        "extent 0: offset at byte 1104 is 4097, expected 4096";
    extent_length_short: |v| v.add(v.extent(4) + 16, u32::MAX) =>
        "extent 4: length at byte 1296 is 383, expected 384";
    extent_length_huge: |v| v.u64(v.extent(0) + 16, u64::MAX) =>
        "extent 0: length at byte 1104 is 18446744073709551615, expected 1 to 67108864";
    extent_length_beyond: |v| v.u64(v.extent(0) + 16, 64 << 20) =>
        "extent 0: length at byte 1104 is 67108864, expected at most what shard 1 has left";
    extent_of_empty_asset: |v| v.u64(v.extent(0) + 16, 0) =>
        "extent 0: length at byte 1104 is 0, expected 1 to 67108864";
    extent_twice: |v| v.u32(v.extent(6) + 4, 0) =>
        "extent 6: plane at byte 1392 is plane P2 of group 5 again, expected not what extent 5 holds";
    extent_of_asset_plane: |v| v.u32(v.extent(0) + 4, 1) =>
        "group 0: extents at byte 280 is none, expected an extent of plane P2";
    extents_swapped: |v| {
        let (a, b) = (v.extent(0), v.extent(1));
        (0..EXTENT_RECORD_BYTES).for_each(|i| v.bytes.swap(a + i, b + i));
    } =>
        "extent 0: offset at byte 1104 is 8192, expected 4096";
    planes_out_of_order: |v| {
        // P3 and P4 of the embedding have the same length.
        v.u32(v.extent(6) + 4, 2);
        v.u32(v.extent(7) + 4, 1);
    } =>
        "extent 6: plane at byte 1392 is P4 too early, expected the planes of embedding in order";
    error_drop_infinite: |v| v.u32(v.extent(0) + 40, f32::INFINITY.to_bits()) =>
        "extent 0: error drop at byte 1144 is inf, expected a finite number, not negative, or none";
    extent_reserved: |v| v.u8(v.extent(0) + 44, 1) =>
        "extent 0: reserved at byte 1148 is not zero, expected 0";
    parameters_not_text: |v| v.u8(v.parameters + 3, 0xff) =>
        "index: parameters at byte 3182 is invalid utf-8 sequence of 1 bytes from index 3, expected UTF-8";
    parameters_not_json: |v| v.u8(v.parameters, b'[') =>
        "index: parameters at byte 3182 is expected `,` or `]` at line 1 column 9, expected JSON";
}
