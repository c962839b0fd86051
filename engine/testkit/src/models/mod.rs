//! Tests of the bundled model and of a tiny model of each family on a device, against the CPU.

mod best;
pub mod common;
mod families;
mod forced;
mod greedy;
mod lost;
pub mod ranks;
mod residency;
mod scaled;
mod slow;
pub mod streamed;

use crate::{ModelsDevice, Test};

pub use families::SLOW as SLOW_FAMILIES;
pub use ranks::SLOW as SLOW_RANKS;

/// Returns the tests of all files.
pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    [
        best::suite::<D>(),
        families::suite::<D>(),
        forced::suite::<D>(),
        greedy::suite::<D>(),
        lost::suite::<D>(),
        ranks::suite::<D>(),
        residency::suite::<D>(),
        scaled::suite::<D>(),
        slow::suite::<D>(),
        streamed::suite::<D>(),
    ]
    .concat()
}
