//! All kernels by name, with their text.

/// A file of `cu/` that others include.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// As it is included.
    pub name: &'static str,
    /// What is in it.
    pub text: &'static str,
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        /// What kernels include.
        pub const HEADERS: &[Header] =
            &[$(Header { name: $name, text: include_str!(concat!("../cu/", $name)) }),*];
    };
}

headers! {
    "device.cuh",
    "group.cuh",
    "matvec.cuh",
    "nested.cuh",
    "params.cuh",
    "reduce.cuh",
}

macro_rules! kernels {
    ($($kernel:ident $name:literal),* $(,)?) => {
        /// A kernel of `cu/`, one in every file of its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kernel {
            $(#[doc = concat!("`cu/", $name, ".cu`")] $kernel,)*
        }

        impl Kernel {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kernel),*];

            /// Its name, that of its function too.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => $name,)*
                }
            }

            /// Its text.
            pub const fn source(self) -> &'static str {
                match self {
                    $(Self::$kernel => include_str!(concat!("../cu/", $name, ".cu")),)*
                }
            }
        }
    };
}

kernels! {
    MatvecExperts "matvec_experts",
    MatvecNested "matvec_nested",
    MatvecNestedRows "matvec_nested_rows",
    Quantize "quantize",
    RmsNorm "rms_norm",
}

impl Kernel {
    /// Its place in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}
