//! Adapters with subgroups and without: the same bits.

use crate::harness::{device, plain_device};
use crate::{attention, delta_net, norms, route};

#[test]
fn sums_and_maxima_of_subgroups_are_those_of_workgroups() {
    let (Some(mut device), Some(mut plain)) = (device(), plain_device()) else { return };
    for (rows, cols) in [(1, 1), (3, 65), (2, 2049)] {
        let [own, other] = [&mut device, &mut plain].map(|device| norms::norms(device, rows, cols));
        assert!(own == other, "norms of [{rows}, {cols}]");
    }
    for case in attention::cases().into_iter().filter(|case| case.positions < 200) {
        let steps = [case.positions];
        let [own, other] = [&mut device, &mut plain].map(|device| case.attended(device, &steps));
        assert!(own == other, "{case:?}");
    }
    for shape in delta_net::SHAPES {
        let [own, other] = [&mut device, &mut plain].map(|device| delta_net::story(device, shape));
        assert!(own == other, "{shape:?}");
    }
    for case in route::cases() {
        let [own, other] = [&mut device, &mut plain].map(|device| case.routing(device));
        assert!(own == other, "routing");
    }
}
