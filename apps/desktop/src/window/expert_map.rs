//! Drawing of the map of experts.

use eframe::egui;
use egui::{Color32, Mesh, Pos2, Rect, Sense, Shape, Ui, Vec2};
use nestling::{ExpertMap, Level};

use crate::expert_cells::{Cell, ServedLevels, rows};

/// Largest width and height of a cell in points.
const CELL_MAX: Vec2 = Vec2::new(20.0, 26.0);

/// Smallest height of a row in points.
const ROW_MIN: f32 = 3.0;

/// Colour of a mark of use.
const USED: Color32 = Color32::WHITE;

/// Colour of planes being read.
const ARRIVING: Color32 = Color32::from_rgb(255, 150, 40);

fn colour(level: Option<Level>) -> Color32 {
    match level {
        None => Color32::from_rgb(54, 54, 62),
        Some(Level::L2) => Color32::from_rgb(58, 60, 130),
        Some(Level::L3) => Color32::from_rgb(48, 96, 160),
        Some(Level::L4) => Color32::from_rgb(34, 136, 154),
        Some(Level::L6) => Color32::from_rgb(50, 172, 118),
        Some(Level::L8) => Color32::from_rgb(138, 206, 76),
    }
}

/// Draws the map with its legend: rows are layers, columns are experts.
pub fn show(ui: &mut Ui, map: &ExpertMap, levels: &[ServedLevels]) {
    legend(ui);
    let layers: Vec<_> = rows(map).collect();
    // Default: a map without experts has no columns.
    let columns = layers.iter().map(|(_, layer)| layer.len()).max().unwrap_or(0);
    if columns == 0 {
        return;
    }
    let available = ui.available_size();
    let width = (available.x / columns as f32).min(CELL_MAX.x);
    let height = (available.y / layers.len() as f32).clamp(ROW_MIN, CELL_MAX.y);
    let size = Vec2::new(width * columns as f32, height * layers.len() as f32);
    egui::ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
        let (rect, response) = ui.allocate_exact_size(size, Sense::hover());
        let mut mesh = Mesh::default();
        let cell_of = |layer: usize, planes| {
            // Default: a layer without experts has no cells.
            let levels = levels.get(layer).copied().unwrap_or_default();
            Cell::of(planes, map.step, &levels)
        };
        for (row, (index, layer)) in layers.iter().enumerate() {
            for (column, planes) in layer.iter().enumerate() {
                let at = Vec2::new(column as f32 * width, row as f32 * height);
                let cell = Rect::from_min_size(rect.min + at, Vec2::new(width, height));
                add_cell(&mut mesh, cell, &cell_of(*index, planes));
            }
        }
        ui.painter().add(Shape::mesh(mesh));
        // Default: without a pointer over a cell there is no text.
        let Some(pointer) = response.hover_pos() else { return };
        let place = (pointer - rect.min) / Vec2::new(width, height);
        // Default: rounding may put the pointer past the last row,
        let Some((layer, experts)) = layers.get(place.y as usize) else { return };
        // Default: or past the last column.
        let Some(planes) = experts.get(place.x as usize) else { return };
        let cell = cell_of(*layer, planes);
        let level = cell.level.map_or("absent".into(), |level| format!("{level} bits"));
        let expert = place.x as usize;
        response.on_hover_text(format!("layer {layer}, expert {expert}: {level}"));
    });
}

/// Adds a cell: its level, a frame in the colour of reads, and a mark of use.
fn add_cell(mesh: &mut Mesh, cell: Rect, shown: &Cell) {
    let gap = if cell.width() > 4.0 && cell.height() > 4.0 { 1.0 } else { 0.0 };
    let inner = cell.shrink(gap / 2.0);
    let fill = colour(shown.level);
    if shown.is_arriving {
        mesh.add_colored_rect(inner, ARRIVING);
        mesh.add_colored_rect(inner.shrink((inner.width() / 5.0).min(2.0)), fill);
    } else {
        mesh.add_colored_rect(inner, fill);
    }
    if shown.heat > 0.0 {
        let side = (inner.width().min(inner.height()) * 0.45).max(1.0);
        let mark = Rect::from_center_size(inner.center(), Vec2::splat(side));
        mesh.add_colored_rect(mark, USED.gamma_multiply(shown.heat));
    }
}

fn legend(ui: &mut Ui) {
    let swatch = |ui: &mut Ui, shown: &Cell, text: &str| {
        let (rect, _) = ui.allocate_exact_size(Vec2::splat(12.0), Sense::hover());
        let mut mesh = Mesh::default();
        add_cell(
            &mut mesh,
            Rect::from_min_size(Pos2::new(rect.min.x, rect.min.y), rect.size()),
            shown,
        );
        ui.painter().add(Shape::mesh(mesh));
        ui.weak(text);
    };
    ui.horizontal_wrapped(|ui| {
        swatch(ui, &Cell::default(), "absent");
        for level in Level::ALL {
            let cell = Cell { level: Some(level), ..Cell::default() };
            swatch(ui, &cell, &level.to_string());
        }
        ui.weak("bits");
        swatch(ui, &Cell { is_arriving: true, ..Cell::default() }, "arriving");
        swatch(ui, &Cell { heat: 1.0, ..Cell::default() }, "used");
    });
    ui.add_space(4.0);
}
