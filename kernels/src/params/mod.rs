//! Kernel parameters, field by field as in `cu/params.cuh`, which documents them. Addresses are device
//! addresses; sizes are in elements. A test compares the layouts with the C++ compiler's.

mod launch;

use bytemuck::{Pod, Zeroable};
use nestling_gpu::{AttendSizes, PageWords, RopeSizes, RouteSizes, StoreSizes};

pub use launch::{
    ARGMAX_PART_COLS, EXPERT_USES_MAX, GATED_TILES, GRID_ROWS_MAX, Launch, MATMUL_PAIRS_MAX,
    MATVEC_PAIRS_MAX, MATVEC_TILES_MAX, SPLIT_POSITIONS,
};

/// A struct of `cu/params.cuh`: kernel parameters, or an entry of a table.
pub trait KernelParams: Pod {
    /// Returns the layout.
    fn layout() -> StructLayout;
}

/// Layout of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// Name in `cu/params.cuh`.
    pub name: String,
    /// Size of the struct in bytes.
    pub bytes: usize,
    /// Name, offset and size in bytes of each field, in order.
    pub fields: Vec<(String, usize, usize)>,
}

/// Type of a field.
trait ParamField {
    /// Returns the name, offset and size of a field. A struct without a counterpart in `cu/params.cuh`
    /// returns each of its fields.
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

        /// Returns the layouts of all structs.
        pub fn layouts() -> Vec<StructLayout> {
            vec![$($name::layout()),*]
        }
    };
}

params! {
    /// A matrix in device memory, with parts in the layout of a store.
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

    /// An input row and its output row.
    Pair {
        x_row: u32,
        out_row: u32,
    }

    /// One matrix at one level for some row pairs.
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

    /// Products of blocks, with activations in int8 or floats.
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

    /// Addresses of an expert's matrices, and the number of resident levels.
    ExpertEntry {
        matrices: [u64; 3],
        levels: u32,
        padding: u32,
    }

    /// Conversion of a router's selection to blocks of products.
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

    /// RMSNorm of rows.
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

    /// RMSNorm of parts of rows, in place.
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

    /// Quantization of activations to int8.
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

    /// Activation that joins gate and up. A row contains the gate followed by the up.
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

    /// Products of gates and ups, fused with the activation.
    GatedProductParams {
        products: ProductParams,
        values: u64,
        scales: u64,
        kind: u32,
        alpha: f32,
        limit: f32,
        is_rotated: u32,
    }

    /// Embedding lookup.
    EmbedParams {
        table: u64,
        tokens: u64,
        levels: u64,
        out: u64,
        rows: u32,
        cols: u32,
    }

    /// Norm and rotary embedding of query and key heads.
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
        late_norms: u32,
    }

    /// Position of a row, and index of its sequence's first page in the page list.
    RowPlace {
        position: u32,
        first_page: u32,
    }

    /// Storing of keys and values in KV pages.
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

    /// Selection of each row's experts.
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

    /// Weighted sum of expert outputs.
    ExpertsSumParams {
        weights: u64,
        expert_rows: u64,
        out: u64,
        rows: u32,
        cols: u32,
        per_token: u32,
        padding: u32,
    }

    /// Addition of rows multiplied by a sigmoid.
    AddGatedParams {
        gate: u64,
        x: u64,
        out: u64,
        rows: u32,
        cols: u32,
    }

    /// Multiplication by a function of gates.
    GateParams {
        gate: u64,
        out: u64,
        count: u64,
        width: u32,
        is_softplus: u32,
    }

    /// Scaling, soft-capping or clearing of elements.
    ScalarParams {
        x: u64,
        count: u64,
        value: f32,
        padding: u32,
    }

    /// Gathering of rows by index.
    GatherRowsParams {
        x: u64,
        indices: u64,
        out: u64,
        rows: u32,
        cols: u32,
    }

    /// Copy of the elements after each head's inputs to the positions after its products.
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

    /// A Mamba-2 layer between its projections.
    Mamba2Params {
        projected: u64,
        runs: u64,
        conv: u64,
        bias: u64,
        rate: u64,
        time_bias: u64,
        skip: u64,
        norm: u64,
        mixed: u64,
        out: u64,
        rows: u32,
        runs_count: u32,
        stride: u32,
        channels: u32,
        taps: u32,
        heads: u32,
        groups: u32,
        head_dim: u32,
        state_size: u32,
        eps: f32,
    }

    /// A gated short convolution between its projections.
    ShortConvParams {
        projected: u64,
        runs: u64,
        conv: u64,
        bias: u64,
        out: u64,
        runs_count: u32,
        channels: u32,
        taps: u32,
        padding: u32,
    }

    /// Argmax over parts of rows.
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

    /// Argmax over rows, merged from the results of their parts.
    ArgmaxMergeParams {
        orders: u64,
        columns: u64,
        out: u64,
        rows: u32,
        parts: u32,
    }
}
