//! Adapters with subgroups and half floats, and without: the same bits, but for what a device may do to
//! subnormal half floats.

use crate::harness::{device, expect_close, plain_device};
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
        assert!(own[0] == other[0], "{case:?}: queries");
        let tolerance = case.subnormal_tolerance(&own[0]);
        expect_close(&format!("{case:?}"), &own[1], &other[1], |_| tolerance);
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
