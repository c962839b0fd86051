//! The choice among adapters that are made up, and the list of those that are there.

use super::*;

fn adapter(index: usize, name: &str, kind: AdapterKind) -> AdapterDescription {
    AdapterDescription {
        index,
        name: name.into(),
        kind,
        api: "vulkan".into(),
        driver: "none".into(),
        memory_bytes: None,
        limits: AdapterLimits {
            storage_binding_bytes: 1 << 27,
            buffer_bytes: 1 << 31,
            workgroup_storage_bytes: 1 << 15,
            workgroup_invocations: 1024,
            storage_buffers: 8,
        },
        features: AdapterFeatures {
            int8_dot: false,
            f16: false,
            subgroup_sizes: None,
            mappable_buffers: false,
            uploads: Uploads::Staged,
            pipeline_cache: false,
            timestamps: false,
        },
    }
}

fn chosen(choice: &str, kinds: &[(&str, AdapterKind)]) -> Result<usize, AdapterError> {
    let adapters = kinds.iter().enumerate();
    let adapters: Vec<_> =
        adapters.map(|(index, (name, kind))| adapter(index, name, *kind)).collect();
    let Ok(choice) = choice.parse::<AdapterChoice>();
    choice.among(&adapters.iter().collect::<Vec<_>>())
}

const MANY: &[(&str, AdapterKind)] = &[
    ("llvmpipe", AdapterKind::Software),
    ("Iris Xe", AdapterKind::Integrated),
    ("Radeon RX 7600", AdapterKind::Discrete),
    ("Radeon PRO", AdapterKind::Discrete),
];

#[test]
fn auto_takes_the_best_gpu_and_never_software() {
    assert_eq!(chosen("auto", MANY), Ok(2));
    assert_eq!(chosen("auto", &MANY[..2]), Ok(1));
    assert_eq!(
        chosen("auto", &MANY[..1]),
        Err(AdapterError::OnlySoftware { found: "0 (llvmpipe)".into() })
    );
    assert_eq!(chosen("auto", &[]), Err(AdapterError::NoneFound));
}

#[test]
fn numbers_and_names_take_what_they_name() {
    assert_eq!(chosen("0", MANY), Ok(0));
    assert_eq!(chosen("LLVM", MANY), Ok(0));
    assert_eq!(chosen("radeon", MANY), Ok(2));
    assert_eq!(chosen("pro", MANY), Ok(3));
    let error = chosen("4", MANY[..2].as_ref()).unwrap_err().to_string();
    assert_eq!(error, "there is no graphics adapter 4, only 0 (llvmpipe), 1 (Iris Xe)");
    let error = chosen("arc", &MANY[..1]).unwrap_err().to_string();
    assert_eq!(error, "there is no graphics adapter named `arc`, only 0 (llvmpipe)");
}

#[test]
fn choices_are_shown_as_they_are_read() {
    for text in ["auto", "7", "Radeon RX"] {
        let Ok(choice) = text.parse::<AdapterChoice>();
        assert_eq!(choice.to_string(), text);
    }
}

#[test]
fn what_is_listed_can_be_chosen() {
    // A machine without drivers lists nothing; the choice must say so and not panic.
    let devices = devices();
    for device in &devices {
        let (_, chosen) = choose(&AdapterChoice::Index(device.index)).unwrap();
        assert_eq!(&chosen, device);
        assert!(device.limits.buffer_bytes >= device.limits.storage_binding_bytes);
        assert!(device.memory_bytes != Some(0));
    }
    let missing = choose(&AdapterChoice::Index(devices.len())).map(|(_, device)| device);
    assert!(missing.is_err(), "{missing:?}");
}

#[test]
fn only_shared_memory_is_written_straight() {
    for kind in [AdapterKind::Integrated, AdapterKind::Software] {
        assert_eq!(Uploads::of(kind, true), Uploads::Straight);
        assert_eq!(Uploads::of(kind, false), Uploads::Staged);
    }
    for kind in [AdapterKind::Discrete, AdapterKind::Virtual, AdapterKind::Other] {
        assert_eq!(Uploads::of(kind, true), Uploads::Staged);
    }
}
