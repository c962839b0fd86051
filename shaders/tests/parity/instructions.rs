//! Compares adapters with and without subgroups and half floats. Results are bit-identical, except for
//! subnormal half floats.

use nestling_wgpu::WgpuBackend;

use nestling_testkit::operations::{attention, delta_net, norms, route};
use nestling_testkit::values::expect_close;
use nestling_testkit::{Device, OperationsDevice, Test, note, tests};

use super::harness::{ADAPTER, Vulkan};

/// Environment variable with the required subgroup size.
const DEMANDED: &str = "NESTLING_TEST_SUBGROUPS";

/// Returns whether shaders use subgroups. Fails if a size is required and shaders do not use subgroups of
/// this size.
fn runs_in_subgroups(
    demanded: Option<&str>,
    runs: bool,
    sizes: Option<(u32, u32)>,
) -> Result<bool, String> {
    let Some(demanded) = demanded else { return Ok(runs) };
    let width: u32 =
        demanded.parse().map_err(|_| format!("{DEMANDED}={demanded}: not a width of subgroups"))?;
    match (runs, sizes) {
        (true, Some(sizes)) if sizes == (width, width) => Ok(true),
        _ => {
            Err(format!("{DEMANDED}={width}: the adapter's are {sizes:?}, and shaders run {runs}"))
        }
    }
}

/// Returns whether the device under test uses subgroups, and prints a note if it does not.
fn in_subgroups(device: &WgpuBackend) -> bool {
    let demanded = std::env::var(DEMANDED).ok();
    let sizes = nestling_wgpu::device(&ADAPTER).unwrap().features.subgroup_sizes;
    let runs = runs_in_subgroups(demanded.as_deref(), device.sums_in_subgroups(), sizes).unwrap();
    if !runs {
        note!("SKIPPED, subgroups were not tested: the adapter's are {sizes:?}");
    }
    runs
}

fn a_width_that_is_demanded_is_the_one_that_runs() {
    let width = |width| Some((width, width));
    assert_eq!(runs_in_subgroups(None, true, width(8)), Ok(true));
    assert_eq!(runs_in_subgroups(None, false, None), Ok(false));
    assert_eq!(runs_in_subgroups(Some("8"), true, width(8)), Ok(true));
    for (demanded, runs, sizes) in [
        ("4", true, width(8)),
        ("8", false, width(8)),
        ("8", false, None),
        ("8", true, Some((4, 8))),
        ("eight", true, width(8)),
        ("", true, width(8)),
    ] {
        let error = runs_in_subgroups(Some(demanded), runs, sizes).unwrap_err();
        assert!(error.contains(DEMANDED), "{error}");
    }
}

fn plain_shaders_have_no_subgroups() {
    let plain = Vulkan::plain_device();
    assert!(!plain.sums_in_subgroups());
}

fn sums_and_maxima_of_subgroups_are_those_of_workgroups() {
    let (mut device, mut plain) = (Vulkan::device(), Vulkan::plain_device());
    if !in_subgroups(&device) {
        return;
    }
    for (rows, cols) in [(1, 1), (3, 65), (2, 2049)] {
        let [own, other] = [&mut device, &mut plain].map(|device| norms::norms(device, rows, cols));
        assert!(own == other, "norms of [{rows}, {cols}]");
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

fn attention_is_the_same_in_every_form() {
    let (mut device, mut plain) = (Vulkan::device(), Vulkan::plain_device());
    in_subgroups(&device);
    for case in attention::cases().into_iter().filter(|case| case.positions < 200) {
        let steps = [case.positions];
        let [own, other] = [&mut device, &mut plain].map(|device| case.attended(device, &steps));
        assert!(own[0] == other[0], "{case:?}: queries");
        let tolerance = case.subnormal_tolerance(&own[0]);
        expect_close(&format!("{case:?}"), &own[1], &other[1], |_| tolerance);
    }
}

pub fn suite() -> Vec<Test> {
    tests![
        a_width_that_is_demanded_is_the_one_that_runs,
        plain_shaders_have_no_subgroups,
        sums_and_maxima_of_subgroups_are_those_of_workgroups,
        attention_is_the_same_in_every_form,
    ]
}
