//! Shared test support: suites that all GPU backends pass, generic over the device, and a test harness
//! ([`run`]). The harness reports a test as ignored, with the reason, if the machine lacks a requirement.
//!
//! A test program registers suites in its `main` (`harness = false`):
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     let mut suite = nestling_testkit::operations::suite::<Vulkan>();
//!     suite.extend(tests![the_least_limits_are_enough]);
//!     nestling_testkit::run(vec![Suite::new(suite).unless(no_adapter)])
//! }
//! ```
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![expect(missing_docs, reason = "tests say by their names what they hold")]

mod conversions;
pub mod device;
pub mod hub_server;
pub mod models;
mod notes;
pub mod operations;
pub mod runners;
mod shards;
mod shared_devices;
mod suite;
mod test;
pub mod values;

pub use conversions::convert_once;
pub use device::{Device, ModelsDevice, OperationsDevice};
pub use notes::keep as keep_note;
pub use shards::in_shards;
pub use shared_devices::SharedDevices;
pub use suite::{Suite, run};
pub use test::Test;
