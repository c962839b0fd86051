//! The conversation.

use eframe::egui;
use egui::{Color32, Frame, Key, Panel, RichText, ScrollArea, Ui};

use crate::messages::Command;
use crate::state::{Application, Author, Line, Phase};
use crate::words::percent;

/// Colour of messages.
const TEXT: Color32 = Color32::from_rgb(225, 225, 228);

/// Draws the conversation with its input.
pub fn show(ui: &mut Ui, state: &mut Application) -> Option<Command> {
    let command = Panel::bottom("input").show(ui, |ui| input(ui, state)).inner;
    let area = ScrollArea::vertical().auto_shrink(false).stick_to_bottom(true);
    area.show(ui, |ui| {
        if state.lines.is_empty() {
            let has_template = matches!(&state.phase, Phase::Open(opened) if opened.has_template);
            ui.weak(match has_template {
                true => "Write a message below.",
                false => "This model has no chat template: it continues the text of a message.",
            });
        }
        let last = state.lines.len().wrapping_sub(1);
        for (at, line) in state.lines.iter().enumerate() {
            show_line(ui, line, state.is_answering && at == last);
        }
        if let Some(finished) = &state.finished {
            let mut words = format!(
                "{} tokens after {} of prompt, {:.1} tokens/s",
                finished.answer_tokens, finished.prompt_tokens, finished.tokens_per_second
            );
            if let Some(rate) = finished.hit_rate {
                words += &format!(", {} from memory", percent(rate));
            }
            if let Some(bits) = finished.bits {
                words += &format!(", {bits:.1} bits");
            }
            if finished.was_stopped {
                words += ", stopped";
            }
            ui.weak(words);
        }
    });
    command
}

fn show_line(ui: &mut Ui, line: &Line, is_running: bool) {
    let (name, fill) = match line.author {
        Author::User => ("You", Color32::from_rgb(38, 52, 70)),
        Author::Model => ("Model", Color32::from_rgb(36, 36, 40)),
    };
    Frame::new().fill(fill).corner_radius(6).inner_margin(8).show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.label(RichText::new(name).small().strong());
        if !line.reasoning.is_empty() {
            ui.label(RichText::new(&line.reasoning).italics().weak());
        }
        match line.text.is_empty() && is_running {
            true => ui.spinner(),
            false => ui.label(RichText::new(&line.text).size(14.5).color(TEXT)),
        };
    });
    ui.add_space(6.0);
}

fn input(ui: &mut Ui, state: &mut Application) -> Option<Command> {
    let mut command = None;
    ui.add_space(4.0);
    ui.horizontal(|ui| {
        let edit = egui::TextEdit::singleline(&mut state.draft)
            .hint_text("Message")
            .desired_width((ui.available_width() - 64.0).max(80.0));
        let response = ui.add(edit);
        let entered = response.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
        if state.is_answering {
            if ui.button("Stop").clicked() {
                command = state.stop();
            }
        } else if ui.button("Send").clicked() || entered {
            command = state.send();
            response.request_focus();
        }
    });
    ui.add_space(4.0);
    command
}
