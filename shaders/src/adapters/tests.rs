//! Tests the choice among simulated adapters, and the list of real ones.

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
            exact: true,
        },
        refusal: None,
    }
}

fn chosen(choice: &str, kinds: &[(&str, AdapterKind)]) -> Result<usize, AdapterError> {
    chosen_but(choice, kinds, &[])
}

fn chosen_but(
    choice: &str,
    kinds: &[(&str, AdapterKind)],
    refused: &[usize],
) -> Result<usize, AdapterError> {
    let adapters = kinds.iter().enumerate();
    let mut adapters: Vec<_> =
        adapters.map(|(index, (name, kind))| adapter(index, name, *kind)).collect();
    for index in refused {
        adapters[*index].refusal = Some(Refusal::NoShaderCompiler);
    }
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
fn what_is_refused_is_passed_over_and_else_named() {
    let refused = |name: &str| {
        Err(AdapterError::Refused { name: name.into(), refusal: Refusal::NoShaderCompiler })
    };
    // The same GPU through another API, or another GPU.
    assert_eq!(chosen_but("auto", MANY, &[2]), Ok(3));
    assert_eq!(chosen_but("radeon", MANY, &[2]), Ok(3));
    assert_eq!(chosen_but("auto", MANY, &[2, 3]), Ok(1));
    assert_eq!(chosen_but("auto", MANY, &[1, 2, 3]), refused("Radeon RX 7600"));
    assert_eq!(chosen_but("rx 7600", MANY, &[2]), refused("Radeon RX 7600"));
    assert_eq!(chosen_but("2", MANY, &[2]), refused("Radeon RX 7600"));
    let error = chosen_but("2", MANY, &[2]).unwrap_err().to_string();
    assert!(error.starts_with("Radeon RX 7600 cannot be used: Direct3D 12 needs dxcompiler.dll"));
    assert!(error.contains("beside the program or on PATH"), "{error}");
    assert!(error.contains("Vulkan"), "{error}");
}

#[test]
fn subgroups_are_used_where_a_workgroup_is_whole_ones() {
    let mut features = adapter(0, "any", AdapterKind::Discrete).features;
    for (sizes, are_used) in [
        (None, false),
        (Some((4, 4)), true),
        (Some((8, 32)), true),
        (Some((64, 64)), true),
        (Some((2, 4)), false),
        (Some((64, 128)), false),
    ] {
        features.subgroup_sizes = sizes;
        assert_eq!(features.sums_in_subgroups(), are_used, "{sizes:?}");
    }
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
    // On a machine without drivers, the list is empty and the choice must return an error without panicking.
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
