//! Reads name the plane that they bring by a number.

use nestling_formats::Plane;

use crate::residency::PlaneId;

/// The tag of a plane's read. Layers and experts are below 2²⁴ by the limits of configurations.
pub(super) fn tag_of(id: PlaneId) -> u64 {
    u64::from(id.layer) << 32 | u64::from(id.expert) << 8 | id.plane.index() as u64
}

pub(super) fn plane_of(tag: u64) -> PlaneId {
    let plane = Plane::ALL[(tag & 0xff) as usize % Plane::ALL.len()];
    PlaneId { layer: (tag >> 32) as u32, expert: (tag >> 8) as u32 & 0xff_ffff, plane }
}

#[cfg(test)]
mod tests {
    use nestling_formats::Plane;

    use super::{PlaneId, plane_of, tag_of};

    #[test]
    fn tags_name_planes() {
        for (layer, expert) in [(0, 0), (47, 127), (93, 511), (1 << 20, (1 << 24) - 1)] {
            for plane in Plane::ALL {
                let id = PlaneId { layer, expert, plane };
                assert_eq!(plane_of(tag_of(id)), id);
            }
        }
    }
}
