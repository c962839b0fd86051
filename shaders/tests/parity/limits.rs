//! Compares a device that has only the guaranteed limits. The limits suffice, and results are bit-identical.

use nestling_formats::Level;

use nestling_testkit::operations::matrices::{MatrixForm, weights};
use nestling_testkit::operations::{attention, delta_net, elementwise, norms, products, route};
use nestling_testkit::{Device, Test, tests};

use super::harness::{Vulkan, limited_device};

fn the_least_limits_are_enough() {
    let (mut device, mut limited) = (Vulkan::device(), limited_device());
    let mut devices = [&mut device, &mut limited];
    for case in attention::cases() {
        let [own, other] =
            devices.each_mut().map(|device| case.attended(*device, &[case.positions]));
        assert!(own == other, "{case:?}");
    }
    for shape in delta_net::SHAPES {
        let [own, other] = devices.each_mut().map(|device| delta_net::story(*device, shape));
        assert!(own == other, "{shape:?}");
    }
    for case in route::cases() {
        let [own, other] = devices.each_mut().map(|device| case.routing(*device));
        assert!(own == other, "routing");
    }
    let matrix = weights(MatrixForm::Tiled, 40, 200, 3);
    for rows in [0..1, 0..5, 0..100] {
        let [own, other] = devices
            .each_mut()
            .map(|device| products::some_rows(*device, &matrix, Level::L6, rows.clone()));
        assert!(own == other, "products of {rows:?}");
    }
    let [own, other] = devices.each_mut().map(|device| elementwise::operations(*device, 5, 130));
    assert!(own == other, "elements");
    let [own, other] = devices.each_mut().map(|device| norms::norms(*device, 2, 2049));
    assert!(own == other, "norms");
}

pub fn suite() -> Vec<Test> {
    tests![the_least_limits_are_enough,]
}
