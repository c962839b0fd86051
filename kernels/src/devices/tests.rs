//! Tests the selection of a device.

use super::*;

fn described(index: usize, name: &str, compute_capability: Version) -> CudaDeviceDescription {
    CudaDeviceDescription {
        index,
        name: name.into(),
        compute_capability,
        multiprocessors: 1,
        memory_bytes: 1 << 30,
        l2_bytes: 1 << 20,
        memory_bandwidth: 0,
        driver: Version::new(12, 6),
    }
}

fn chosen(choice: &CudaDeviceChoice) -> Result<usize, CudaDeviceError> {
    let devices = vec![
        described(0, "Old card", Version::new(6, 1)),
        described(1, "NVIDIA H200", Version::new(9, 0)),
        described(2, "NVIDIA L4", Version::new(8, 9)),
    ];
    choice.among(devices).map(|device| device.index)
}

#[test]
fn devices_are_chosen_by_number_or_name() {
    assert_eq!(chosen(&CudaDeviceChoice::Auto), Ok(1));
    assert_eq!(chosen(&CudaDeviceChoice::Index(2)), Ok(2));
    assert_eq!(chosen(&CudaDeviceChoice::Name("l4".into())), Ok(2));
    let missing = chosen(&CudaDeviceChoice::Index(3)).unwrap_err().to_string();
    assert!(missing.contains("2 (NVIDIA L4)"), "{missing}");
    let missing = chosen(&CudaDeviceChoice::Name("A100".into())).unwrap_err().to_string();
    assert!(missing.contains("named `A100`, only 0 (Old card)"), "{missing}");
}

#[test]
fn a_device_that_is_too_old_is_refused_with_its_capability() {
    let old = chosen(&CudaDeviceChoice::Index(0)).unwrap_err().to_string();
    assert_eq!(old, "Old card has compute capability 6.1, but 7.5 is the minimum");
    assert_eq!(CudaDeviceChoice::Auto.among(Vec::new()), Err(CudaDeviceError::NoneFound));
}

#[test]
fn choices_are_read_and_shown() {
    for text in ["auto", "1", "H200"] {
        let Ok(choice) = text.parse::<CudaDeviceChoice>();
        assert_eq!(choice.to_string(), text);
    }
}
