//! The plan of a model that is not open.

use eframe::egui;
use egui::{Grid, ProgressBar, RichText, Ui};
use nestling::PlannedResidence;
use nestling_plan::plan::Forecast;

use super::memory;
use crate::messages::Command;
use crate::plan::{FileKind, Plan};
use crate::state::{Application, Phase};
use crate::words::{percent, size};

/// Draws the plan, the progress of the opening, or a hint.
pub fn show(ui: &mut Ui, state: &mut Application) -> Option<Command> {
    let mut command = None;
    ui.add_space(12.0);
    match &state.phase {
        Phase::Empty => {
            ui.vertical_centered(|ui| {
                ui.add_space(ui.available_height() / 3.0);
                ui.label(RichText::new("Drop a model file here").size(24.0));
                ui.weak("a .nest store, a GGUF file, or the folder of a Hugging Face checkpoint");
            });
        }
        Phase::Planning => {
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("Reading the headers");
            });
        }
        Phase::Planned => command = planned(ui, state),
        Phase::Opening { parts_done, parts_total, .. } => {
            let share = *parts_done as f32 / (*parts_total).max(1) as f32;
            ui.label(RichText::new("Opening").size(16.0));
            let text = format!("{parts_done} of {parts_total} parts");
            ui.add(ProgressBar::new(share).text(text).desired_width(420.0));
            if ui.button("Cancel").clicked() {
                command = state.stop();
            }
        }
        Phase::Open(_) => {}
    }
    command
}

fn planned(ui: &mut Ui, state: &mut Application) -> Option<Command> {
    let plan = state.plan.as_ref()?;
    ui.label(RichText::new(plan.path.display().to_string()).strong());
    match plan.form {
        FileKind::Store => {}
        FileKind::Gguf => _ = ui.weak("runs in place: no store is made of it"),
        FileKind::Checkpoint { weight_bytes } => {
            let bytes = size(weight_bytes);
            ui.weak(format!(
                "The plan is that of the store that a conversion writes. Opened as it is, the checkpoint \
                 keeps weights of {bytes} in memory."
            ));
        }
    }
    ui.add_space(8.0);
    table(ui, plan, state.forecast.as_ref());
    ui.add_space(8.0);
    let changed = memory::budget_slider(ui, state);
    ui.add_space(8.0);
    let opened = ui.button(RichText::new("Open").size(16.0)).clicked();
    if opened { state.open() } else { changed }
}

fn table(ui: &mut Ui, plan: &Plan, forecast: Option<&Forecast>) {
    let memory = &plan.memory;
    let share = plan.expert_bytes() as f64 / memory.expert_bytes_total.max(1) as f64;
    let residence = match memory.residence {
        PlannedResidence::Resident => "all in memory".into(),
        PlannedResidence::Streamed | PlannedResidence::Lazy => {
            format!("{} in memory, the rest on disk", percent(share))
        }
    };
    let context = format!("context of {} tokens", memory.context_length);
    let mut rows = vec![("weights of every token", plan.dense_bytes(), String::new())];
    if plan.has_experts {
        rows.push(("experts", plan.expert_bytes(), residence));
    }
    rows.push(("keys and values", memory.kv_bytes, context));
    rows.push(("scratch", memory.scratch_bytes, String::new()));
    rows.push(("program", memory.program_bytes, String::new()));
    rows.push(("in all", memory.total_bytes(), format!("at level {}", plan.level)));
    rows.push(("minimum", plan.least_bytes, String::new()));
    rows.push(("all weights in memory", plan.whole_bytes, String::new()));
    Grid::new("plan").num_columns(3).spacing([24.0, 6.0]).striped(true).show(ui, |ui| {
        for (name, bytes, note) in rows {
            ui.label(name);
            ui.monospace(format!("{:>9}", size(bytes)));
            ui.weak(note);
            ui.end_row();
        }
        if let Some(found) = forecast {
            ui.label("forecast");
            ui.monospace(format!("{:.1} tokens/s", found.tokens_per_s));
            let hits = percent(found.hit_rate);
            ui.weak(format!("{hits} of a token's experts from memory"));
            ui.end_row();
        }
    });
}
