//! What kernels are given, field by field as in `cu/params.cuh`, which says what they mean. Addresses
//! are those of a device; sizes are in elements. A test compares layouts with the C++ compiler's.

mod launch;

use bytemuck::{Pod, Zeroable};
use nestling_gpu::{AttendSizes, PageWords, RopeSizes, RouteSizes, StoreSizes};

pub use launch::{
    ARGMAX_PART_COLS, EXPERT_USES_MAX, GATED_TILES, GRID_ROWS_MAX, Launch, MATMUL_PAIRS_MAX,
    MATVEC_PAIRS_MAX, MATVEC_TILES_MAX, SPLIT_POSITIONS,
};

/// A struct of `cu/params.cuh`: what kernels are given, and what that leads to.
pub trait KernelParams: Pod {
    /// How it is laid out.
    fn layout() -> StructLayout;
}

/// Where a struct's fields lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// Its name in `cu/params.cuh`.
    pub name: String,
    /// Bytes of all.
    pub bytes: usize,
    /// Name, offset and bytes of every field, in order.
    pub fields: Vec<(String, usize, usize)>,
}

/// The type of a field.
trait ParamField {
    /// Name, offset and bytes of a field of this type, or of each field of a struct that has no struct of its
    /// own in `cu/params.cuh`.
    fn fields(name: &str, offset: usize) -> Vec<(String, usize, usize)>;
}

macro_rules! single_fields {
    ($($type:ty),*) => {
        $(impl ParamField for $type {
            fn fields(name: &str, offset: usize) -> Vec<(String, usize, usize)> {
                vec![(name.to_owned(), offset, size_of::<Self>())]
            }
        })*
    };
}

single_fields!(u32, u64, f32, [u64; 3], ProductParams);

macro_rules! inlined_fields {
    ($($type:ident { $($field:ident),* })*) => {
        $(impl ParamField for $type {
            fn fields(_name: &str, offset: usize) -> Vec<(String, usize, usize)> {
                vec![$((
                    stringify!($field).to_owned(),
                    offset + std::mem::offset_of!($type, $field),
                    size_of::<u32>(),
                )),*]
            }
        })*
    };
}

inlined_fields! {
    RopeSizes { queries, keys, stride, head_dim, rope_first, rope_dims }
    RouteSizes {
        rows, experts, per_token, is_sigmoid, normalizes, scale, groups, groups_kept, two_best
    }
    StoreSizes { heads, stride, first, head_dim, prefix }
    AttendSizes { heads, sharing, stride, head_dim, value_dim, window }
    PageWords { head_words, value_first, value_position, value_word, prefix_words, scale_first }
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
            #[repr(C)]
            pub struct $name {
                $(
                    #[doc = concat!("`", stringify!($field), "` of `cu/params.cuh`.")]
                    pub $field: $type,
                )*
            }

            impl KernelParams for $name {
                fn layout() -> StructLayout {
                    let fields = [$(
                        <$type>::fields(stringify!($field), std::mem::offset_of!($name, $field)),
                    )*].concat();
                    let name = stringify!($name).to_owned();
                    StructLayout { name, bytes: size_of::<$name>(), fields }
                }
            }
        )*

        /// The layouts of all structs.
        pub fn layouts() -> Vec<StructLayout> {
            vec![$($name::layout()),*]
        }
    };
}

params! {
    /// A matrix in device memory, its parts as a store has them.
    Matrix {
        row_scales: u64,
        tile_tables: u64,
        steps: u64,
        step_high: u64,
        p2: u64,
        p3: u64,
        p4: u64,
        p6: u64,
        p8: u64,
        codec: u64,
        form: u32,
        is_merged: u32,
        rows: u32,
        cols: u32,
        groups: u32,
        prefixes: u32,
    }

    /// Row of the input, row of the output.
    Pair {
        x_row: u32,
        out_row: u32,
    }

    /// One matrix at one level for some pairs of rows.
    Block {
        matrix: u64,
        bias: u64,
        level: u32,
        first_pair: u32,
        pairs: u32,
        first_row: u32,
        end_row: u32,
        out_col: u32,
    }

    /// Products of blocks; activations in int8 or as they are.
    ProductParams {
        blocks: u64,
        pairs: u64,
        x_values: u64,
        x_scales: u64,
        x: u64,
        out: u64,
        x_groups: u32,
        x_stride: u32,
        out_cols: u32,
        adds: u32,
        tiles_per_block: u32,
        padding: u32,
    }

    /// Where the matrices of an expert are, and how many levels their planes make.
    ExpertEntry {
        matrices: [u64; 3],
        levels: u32,
        padding: u32,
    }

    /// The experts that a router chose, as blocks of products.
    ExpertBlocksParams {
        entries: u64,
        least: u64,
        biases: u64,
        ids: u64,
        weights: u64,
        levels: u64,
        inner: u64,
        outer: u64,
        inner_pairs: u64,
        outer_pairs: u64,
        notes: u64,
        halt: u64,
        uses: u32,
        per_token: u32,
        experts: u32,
        inner_rows: u32,
        out_rows: u32,
        call: u32,
        together: u32,
        padding: u32,
    }

    /// Rows by their root mean square.
    RmsNormParams {
        x: u64,
        weight: u64,
        out: u64,
        values: u64,
        scales: u64,
        rows: u32,
        cols: u32,
        eps: f32,
        adds: u32,
    }

    /// Parts of rows in place, each by its own root mean square.
    NormPartParams {
        x: u64,
        weight: u64,
        count: u32,
        parts: u32,
        row_stride: u32,
        part_stride: u32,
        first: u32,
        length: u32,
        eps: f32,
        padding: u32,
    }

    /// Activations to int8.
    QuantizeParams {
        x: u64,
        values: u64,
        scales: u64,
        rows: u32,
        cols: u32,
        parts: u32,
        part_stride: u32,
        stride: u32,
        is_rotated: u32,
    }

    /// Joins gate and up, which lie in one row, gate in front.
    GatedParams {
        x: u64,
        out: u64,
        values: u64,
        scales: u64,
        rows: u32,
        cols: u32,
        kind: u32,
        alpha: f32,
        limit: f32,
        is_rotated: u32,
    }

    /// Products of gates and ups, joined.
    GatedProductParams {
        products: ProductParams,
        values: u64,
        scales: u64,
        kind: u32,
        alpha: f32,
        limit: f32,
        is_rotated: u32,
    }

    /// Rows of a table.
    EmbedParams {
        table: u64,
        tokens: u64,
        levels: u64,
        out: u64,
        rows: u32,
        cols: u32,
    }

    /// Norms and rotates heads of queries and keys.
    RopeParams {
        x: u64,
        angles: u64,
        query_weight: u64,
        key_weight: u64,
        rows: u32,
        sizes: RopeSizes,
        is_adjacent: u32,
        query_norm: u32,
        key_norm: u32,
        eps: f32,
        padding: u32,
    }

    /// Where a row is, and where the pages of its sequence begin in the list of pages.
    RowPlace {
        position: u32,
        first_page: u32,
    }

    /// Keys and values into their pages.
    KvStoreParams {
        x: u64,
        places: u64,
        pages: u64,
        rows: u32,
        sizes: StoreSizes,
        head_words: u32,
        value_first: u32,
        scale_first: u32,
        padding: u32,
    }

    /// Causal attention over windows of positions.
    AttendParams {
        queries: u64,
        places: u64,
        pages: u64,
        sinks: u64,
        out: u64,
        parts: u64,
        rows: u32,
        sizes: AttendSizes,
        scale: f32,
        words: PageWords,
        splits: u32,
        block_heads: u32,
    }

    /// The experts of every row.
    RouteParams {
        logits: u64,
        logit_bias: u64,
        selection_bias: u64,
        expert_scale: u64,
        ids: u64,
        weights: u64,
        sizes: RouteSizes,
        padding: u32,
    }

    /// Adds what the experts of every row gave, weighted.
    ExpertsSumParams {
        weights: u64,
        expert_rows: u64,
        out: u64,
        rows: u32,
        cols: u32,
        per_token: u32,
        padding: u32,
    }

    /// Adds rows, each multiplied by a sigmoid.
    AddGatedParams {
        gate: u64,
        x: u64,
        out: u64,
        rows: u32,
        cols: u32,
    }

    /// Multiplies by sigmoids.
    GateParams {
        gate: u64,
        out: u64,
        count: u64,
    }

    /// Multiplies, or keeps within a cap.
    ScalarParams {
        x: u64,
        count: u64,
        value: f32,
        padding: u32,
    }

    /// Rows by their numbers.
    GatherRowsParams {
        x: u64,
        indices: u64,
        out: u64,
        rows: u32,
        cols: u32,
    }

    /// What follows the products of heads.
    HeadsRestParams {
        x: u64,
        out: u64,
        places: u32,
        inputs: u32,
        outputs: u32,
        rest: u32,
    }

    /// One run of rows of a sequence.
    StateRun {
        from: u64,
        to: u64,
        first_row: u32,
        rows: u32,
    }

    /// A gated DeltaNet layer between its projections.
    DeltaNetParams {
        projected: u64,
        runs: u64,
        conv: u64,
        query_norm: u64,
        key_norm: u64,
        rate: u64,
        time_bias: u64,
        norm: u64,
        mixed: u64,
        out: u64,
        rows: u32,
        runs_count: u32,
        stride: u32,
        channels: u32,
        taps: u32,
        key_heads: u32,
        value_heads: u32,
        key_dim: u32,
        value_dim: u32,
        unit_eps: f32,
        eps: f32,
        padding: u32,
    }

    /// The largest of every part of every row.
    ArgmaxParams {
        x: u64,
        orders: u64,
        columns: u64,
        rows: u32,
        cols: u32,
        among: u32,
        parts: u32,
        part_cols: u32,
        padding: u32,
    }

    /// The largest of every row, of what its parts have.
    ArgmaxMergeParams {
        orders: u64,
        columns: u64,
        out: u64,
        rows: u32,
        parts: u32,
    }
}
