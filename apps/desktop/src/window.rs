//! The window: draws the state, and passes clicks on to it.

mod chat;
mod expert_map;
mod memory;
mod plan;

use std::path::PathBuf;

use eframe::egui;
use egui::{CentralPanel, Panel, RichText, Ui, ViewportCommand};

use crate::arguments::Arguments;
use crate::messages::Command;
use crate::self_test::{Next, SelfTest};
use crate::state::{Application, Phase};
use crate::worker::{Settings, Worker};

/// Maximum number of tokens of an answer unless the arguments set one.
const MAX_TOKENS: usize = 512;

/// Size of the window in points.
const SIZE: [f32; 2] = [1080.0, 720.0];

struct App {
    state: Application,
    worker: Worker,
    /// Path being typed.
    path: String,
    self_test: Option<SelfTest>,
    /// Result of the self-test, shared with the caller of the window.
    result: std::sync::Arc<std::sync::Mutex<Result<(), String>>>,
}

/// Opens the window, and returns once it is closed.
///
/// # Errors
/// Fails without a window system, or with the reason of a failed self-test.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let viewport = egui::ViewportBuilder::default()
        .with_title("Nestling")
        .with_inner_size(SIZE)
        .with_min_inner_size([640.0, 420.0])
        .with_drag_and_drop(true);
    let options = eframe::NativeOptions { viewport, ..eframe::NativeOptions::default() };
    let self_test = arguments.self_test.then(|| SelfTest::new(arguments)).transpose()?;
    let result = std::sync::Arc::new(std::sync::Mutex::new(Ok(())));
    let shared = std::sync::Arc::clone(&result);
    let create = |context: &eframe::CreationContext<'_>| {
        Ok(Box::new(App::new(arguments, self_test, shared, &context.egui_ctx)?)
            as Box<dyn eframe::App>)
    };
    let ran = eframe::run_native("nestling-desktop", options, Box::new(create));
    ran.map_err(|error| format!("no window: {error}"))?;
    let result = result.lock().map_err(|_| "the window's thread panicked")?;
    result.clone()
}

impl App {
    fn new(
        arguments: &Arguments,
        self_test: Option<SelfTest>,
        result: std::sync::Arc<std::sync::Mutex<Result<(), String>>>,
        context: &egui::Context,
    ) -> Result<Self, std::io::Error> {
        context.set_theme(egui::Theme::Dark);
        context.all_styles_mut(|style| style.visuals.weak_text_alpha = 0.75);
        let repainted = context.clone();
        let settings = Settings {
            max_tokens: arguments.max_tokens.unwrap_or(MAX_TOKENS),
            greedy: arguments.greedy || self_test.is_some(),
            predict: self_test.is_none(),
        };
        let worker = Worker::start(settings, move || repainted.request_repaint())?;
        let opens_itself = arguments.open || arguments.say.is_some();
        let first_message = arguments.say.clone();
        let state = Application { opens_itself, first_message, ..Application::default() };
        let mut app = Self { state, worker, path: String::new(), self_test, result };
        if let Some(model) = arguments.model.clone().filter(|_| app.self_test.is_none()) {
            let command = app.state.choose(model, arguments.budget);
            app.send(command);
        }
        Ok(app)
    }

    fn send(&mut self, command: Option<Command>) {
        if let Some(command) = command {
            self.worker.send(command);
        }
    }

    /// Continues the self-test, and closes the window at its end.
    fn advance_self_test(&mut self, context: &egui::Context) {
        // Default: most windows have no self-test.
        let Some(test) = &mut self.self_test else { return };
        let ended = match test.next(&mut self.state) {
            Ok(Next::Wait) => {
                context.request_repaint_after(std::time::Duration::from_millis(100));
                return;
            }
            Ok(Next::Command(command)) => return self.worker.send(command),
            Ok(Next::Done) => Ok(()),
            Err(reason) => Err(reason),
        };
        if let Ok(mut result) = self.result.lock() {
            *result = ended;
        }
        self.self_test = None;
        context.send_viewport_cmd(ViewportCommand::Close);
    }

    /// Plans the first file that was dropped.
    fn take_dropped(&mut self, ui: &Ui) {
        let path =
            ui.input(|input| input.raw.dropped_files.first().map(|file| file.path().to_path_buf()));
        if let Some(path) = path.filter(|path| *path != PathBuf::new()) {
            let command = self.state.choose(path, None);
            self.send(command);
        }
    }

    fn top_bar(&mut self, ui: &mut Ui) -> Option<Command> {
        let mut command = None;
        ui.horizontal(|ui| {
            ui.label(RichText::new("Nestling").strong().size(18.0));
            match (&self.state.phase, &self.state.path) {
                (Phase::Open(opened), Some(path)) => {
                    // Default: a path that ends in `..` has no name.
                    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                    ui.label(name);
                    ui.weak(format!("on {}, context {}", opened.device, opened.context_length));
                    if ui.button("Close").clicked() {
                        command = self.state.close();
                    }
                }
                _ => {
                    let edit = egui::TextEdit::singleline(&mut self.path)
                        .hint_text("Path of a .nest store, a GGUF file or a checkpoint's folder")
                        .desired_width(480.0);
                    let entered = ui.add(edit).lost_focus()
                        && ui.input(|input| input.key_pressed(egui::Key::Enter));
                    if (ui.button("Plan").clicked() || entered) && !self.path.trim().is_empty() {
                        command = self.state.choose(self.path.trim().into(), None);
                    }
                }
            }
        });
        command
    }
}

impl eframe::App for App {
    fn logic(&mut self, context: &egui::Context, _: &mut eframe::Frame) {
        while let Some(report) = self.worker.report() {
            let command = self.state.apply(report);
            self.send(command);
        }
        self.advance_self_test(context);
    }

    fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
        self.take_dropped(ui);
        let mut command = Panel::top("top").show(ui, |ui| self.top_bar(ui)).inner;
        if let Some(error) = self.state.error.clone() {
            Panel::top("error").show(ui, |ui| {
                ui.horizontal_wrapped(|ui| {
                    ui.colored_label(egui::Color32::from_rgb(255, 120, 110), error);
                    if ui.small_button("dismiss").clicked() {
                        self.state.error = None;
                    }
                });
            });
        }
        let is_open = matches!(self.state.phase, Phase::Open(_));
        if is_open {
            let side = Panel::right("memory").default_size(430.0).min_size(260.0);
            let asked = side.show(ui, |ui| memory::show(ui, &mut self.state)).inner;
            command = command.or(asked);
        }
        let asked = CentralPanel::default().show(ui, |ui| match is_open {
            true => chat::show(ui, &mut self.state),
            false => plan::show(ui, &mut self.state),
        });
        self.send(command.or(asked.inner));
    }
}
