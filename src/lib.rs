//! The facade that applications depend on.
pub use nestling_engine as engine;
pub use nestling_formats as formats;
