//! All kernels with their names and source texts.

/// A file of `cu/` included by kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name in include directives.
    pub name: &'static str,
    /// Source text.
    pub text: &'static str,
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        /// Files included by kernels.
        pub const HEADERS: &[Header] =
            &[$(Header { name: $name, text: include_str!(concat!("../cu/", $name)) }),*];
    };
}

headers! {
    "argmax.cuh",
    "attend.cuh",
    "convolved.cuh",
    "device.cuh",
    "element.cuh",
    "gated.cuh",
    "group.cuh",
    "kv_store.cuh",
    "math.cuh",
    "matmul.cuh",
    "matvec.cuh",
    "nested.cuh",
    "pages.cuh",
    "params.cuh",
    "reduce.cuh",
    "rms_norm.cuh",
    "scaled.cuh",
    "softplus.cuh",
    "weights.cuh",
}

macro_rules! kernels {
    ($($kernel:ident $name:literal),* $(,)?) => {
        /// A kernel of `cu/`. Each file `cu/*.cu` contains one kernel of the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kernel {
            $(#[doc = concat!("`cu/", $name, ".cu`")] $kernel,)*
        }

        impl Kernel {
            /// All kernels.
            pub const ALL: &[Self] = &[$(Self::$kernel),*];

            /// Returns the name of the kernel and of its function.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => $name,)*
                }
            }

            /// Returns the source text.
            pub const fn source(self) -> &'static str {
                match self {
                    $(Self::$kernel => include_str!(concat!("../cu/", $name, ".cu")),)*
                }
            }
        }
    };
}

kernels! {
    AddGated "add_gated",
    Argmax "argmax",
    ArgmaxMerge "argmax_merge",
    AttendF16 "attend_f16",
    AttendF32 "attend_f32",
    AttendInt8 "attend_int8",
    AttendMerge "attend_merge",
    AttendSplitF16 "attend_split_f16",
    AttendSplitF32 "attend_split_f32",
    AttendSplitInt8 "attend_split_int8",
    Clear "clear",
    DeltaNetConv "delta_net_conv",
    DeltaNetGate "delta_net_gate",
    DeltaNetRule "delta_net_rule",
    Embed "embed",
    ExpertBlocks "expert_blocks",
    ExpertsSum "experts_sum",
    Gate "gate",
    Gated "gated",
    GatedQuantize "gated_quantize",
    GatherRows "gather_rows",
    HeadsRest "heads_rest",
    KvStoreF16 "kv_store_f16",
    KvStoreF32 "kv_store_f32",
    KvStoreInt8 "kv_store_int8",
    Mamba2Conv "mamba2_conv",
    Mamba2Norm "mamba2_norm",
    Mamba2Scan "mamba2_scan",
    MatmulNested "matmul_nested",
    MatvecFloat "matvec_float",
    MatvecGatedQuantize "matvec_gated_quantize",
    MatvecNested "matvec_nested",
    MatvecNestedRows "matvec_nested_rows",
    MatvecRowMajor "matvec_row_major",
    MatvecScaled "matvec_scaled",
    NormPart "norm_part",
    Quantize "quantize",
    RmsNorm "rms_norm",
    RmsNormQuantize "rms_norm_quantize",
    Rope "rope",
    Route "route",
    Scale "scale",
    ShortConv "short_conv",
    Softcap "softcap",
}

impl Kernel {
    /// Returns the index in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}
