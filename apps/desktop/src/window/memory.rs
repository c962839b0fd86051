//! Memory of the open model: budget, rates and the map of experts.

use eframe::egui;
use egui::{Grid, ProgressBar, RichText, Slider, Ui};

use super::expert_map;
use crate::expert_cells::Counts;
use crate::messages::Command;
use crate::state::{Application, Phase};
use crate::words::{percent, size};

/// Draws the panel.
pub fn show(ui: &mut Ui, state: &mut Application) -> Option<Command> {
    ui.add_space(8.0);
    let command = budget_slider(ui, state);
    let Phase::Open(opened) = &state.phase else { return command };
    if !opened.is_streamed {
        ui.weak("The weights of this model are not streamed: the budget cannot shrink them.");
    }
    let Some(status) = &state.status else { return command };
    let share = status.used_bytes as f64 / opened.budget.max(1) as f64;
    let text = format!("{} in use of {}", size(status.used_bytes), size(opened.budget));
    ui.add(ProgressBar::new(share as f32).text(text));
    ui.add_space(8.0);
    let number = |value: Option<f64>, format: &dyn Fn(f64) -> String| {
        value.map_or_else(|| "-".to_owned(), format)
    };
    let rates = &status.rates;
    Grid::new("rates").num_columns(2).spacing([24.0, 4.0]).show(ui, |ui| {
        for (name, words) in [
            ("tokens per second", number(rates.tokens_per_second, &|speed| format!("{speed:.1}"))),
            ("hit rate", number(rates.hit_rate, &percent)),
            ("bits served", number(rates.bits, &|bits| format!("{bits:.2}"))),
        ] {
            ui.label(name);
            ui.label(RichText::new(words).monospace().size(16.0));
            ui.end_row();
        }
    });
    ui.separator();
    match &status.map {
        Some(map) => {
            let Counts { experts, resident, arriving } = Counts::of(map);
            ui.label(RichText::new("Experts: a row for each layer").strong());
            ui.weak(format!("{resident} of {experts} in memory, {arriving} arriving"));
            expert_map::show(ui, map, &opened.levels);
        }
        None => _ = ui.weak("There is no map: experts are not streamed."),
    }
    command
}

/// Draws the slider of the budget. It acts while it moves.
pub fn budget_slider(ui: &mut Ui, state: &mut Application) -> Option<Command> {
    let range = state.budget_range()?;
    let mut budget = state.budget;
    let (least, most) = (size(*range.start()), size(*range.end()));
    ui.label("Memory budget");
    ui.spacing_mut().slider_width = (ui.available_width() - 110.0).clamp(80.0, 420.0);
    let slider = Slider::new(&mut budget, range).custom_formatter(|bytes, _| size(bytes as u64));
    let slider = ui.add(slider.custom_parser(|text| Some(crate::words::parse_size(text)? as f64)));
    ui.weak(format!("{least} to {most}"));
    if slider.changed() && budget != state.budget { state.set_budget(budget) } else { None }
}
