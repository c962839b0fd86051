//! Tests of all operations of a backend against the CPU, through the engine's traits.

pub mod attention;
pub mod delta_net;
pub mod elementwise;
mod embed;
mod experts_sum;
mod feed_forward;
pub mod mamba2;
pub mod matrices;
pub mod norms;
pub mod products;
pub mod route;
pub mod scaled;
pub mod scaled_matrix;
pub mod short_conv;

use crate::{OperationsDevice, Test};

/// Returns the tests of all files.
pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    [
        attention::suite::<D>(),
        delta_net::suite::<D>(),
        elementwise::suite::<D>(),
        embed::suite::<D>(),
        experts_sum::suite::<D>(),
        feed_forward::suite::<D>(),
        mamba2::suite::<D>(),
        norms::suite::<D>(),
        products::suite::<D>(),
        route::suite::<D>(),
        scaled::suite::<D>(),
        short_conv::suite::<D>(),
    ]
    .concat()
}
