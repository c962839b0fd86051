//! Cells of the map of experts: rows are layers, columns are experts.

use nestling::{ExpertMap, ExpertPlanes, Level};

/// Number of steps in which a use fades.
const FADE_STEPS: u64 = 8;

/// Level that each number of resident planes serves, from one plane on.
pub type ServedLevels = [Option<Level>; 5];

/// One expert in the map.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// Level that the resident planes serve; `None` if the expert is absent.
    pub level: Option<Level>,
    /// True if planes are being read.
    pub is_arriving: bool,
    /// Brightness of the mark of use: 1 in the last step, 0 after eight.
    pub heat: f32,
}

impl Cell {
    /// Returns the cell of an expert at a step.
    pub fn of(planes: &ExpertPlanes, step: u64, levels: &ServedLevels) -> Self {
        let last = planes.resident.trailing_ones().checked_sub(1);
        let level = last.and_then(|last| *levels.get(last as usize)?);
        let age = step.saturating_sub(planes.last_used);
        let is_recent = planes.last_used > 0 && age < FADE_STEPS;
        let heat = if is_recent { 1.0 - age as f32 / FADE_STEPS as f32 } else { 0.0 };
        Self { level, is_arriving: planes.arriving != 0, heat }
    }
}

/// Summary of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of experts.
    pub experts: usize,
    /// Number of experts with a plane in memory.
    pub resident: usize,
    /// Number of experts with planes being read.
    pub arriving: usize,
}

impl Counts {
    /// Counts the experts of a map.
    pub fn of(map: &ExpertMap) -> Self {
        let experts = || map.layers.iter().flatten();
        Self {
            experts: experts().count(),
            resident: experts().filter(|planes| planes.resident != 0).count(),
            arriving: experts().filter(|planes| planes.arriving != 0).count(),
        }
    }
}

/// Returns the rows of the map: layers with experts, each with its index.
pub fn rows(map: &ExpertMap) -> impl Iterator<Item = (usize, &[ExpertPlanes])> {
    let layers = map.layers.iter().enumerate().filter(|(_, layer)| !layer.is_empty());
    layers.map(|(at, layer)| (at, layer.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_level_reads_and_use() {
        let planes = |resident, arriving, last_used| ExpertPlanes { resident, arriving, last_used };
        let levels = Level::ALL.map(Some);
        let of = |planes: ExpertPlanes, step| Cell::of(&planes, step, &levels);
        assert_eq!(of(planes(0, 0, 0), 5), Cell::default());
        let cell = of(planes(0b111, 0b1000, 9), 9);
        assert_eq!((cell.level, cell.is_arriving, cell.heat), (Some(Level::L4), true, 1.0));
        assert_eq!(of(planes(1, 0, 1), 5).heat, 0.5);
        assert_eq!(of(planes(1, 0, 1), 9).heat, 0.0);
        // A file in place may serve its only level by one plane.
        let levels = [Some(Level::L4), None, None, None, None];
        assert_eq!(Cell::of(&planes(1, 0, 1), 5, &levels).level, Some(Level::L4));
    }
}
