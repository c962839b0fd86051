//! Opening of models.

use nestling::formats::Level;
use nestling::{Builder, Device, EngineOptions, KvDtype, ModelOptions, Residence};
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::call::call;
use crate::engine::Engine;
use crate::error::Failure;
use crate::model::Model;
use crate::progress::Progress;
use crate::wait;

/// Token that cancels the opening of a model. It may be used from any thread.
#[pyclass(frozen, module = "nestling._core")]
#[derive(Debug, Default)]
pub(crate) struct CancelToken {
    token: nestling::CancelToken,
}

#[pymethods]
impl CancelToken {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Requests cancellation without waiting.
    fn cancel(&self) {
        self.token.cancel();
    }
}

/// Opens a model. `options` is JSON. `progress` is called on this thread with the number of finished parts
/// and the total.
#[pyfunction]
#[pyo3(signature = (path, options, progress=None, cancel=None, engine=None))]
pub(crate) fn open(
    py: Python<'_>,
    path: std::path::PathBuf,
    options: &str,
    progress: Option<Py<PyAny>>,
    cancel: Option<&CancelToken>,
    engine: Option<&Engine>,
) -> PyResult<Model> {
    let opened = call(py, || {
        let options = OpenOptions::read(options)?;
        let mut progress = Progress::new(progress);
        let told = progress.counters();
        let engine = engine.map(Engine::get).transpose()?;
        options.check_shared(engine.is_some())?;
        let mut builder = options
            .builder(&path)
            .progress(move |at| told.set(at.parts_done as u64, at.parts_total as u64));
        if let Some(cancel) = cancel {
            builder = builder.cancel(&cancel.token);
        }
        if let Some(engine) = engine {
            builder = builder.in_engine(engine);
        }
        let mut opening = std::pin::pin!(builder.open_async());
        let mut meanwhile = |py: Python<'_>| progress.tell(py);
        let opened = wait::wait(None, &mut meanwhile, |context| opening.as_mut().poll(context))?;
        let model = opened.ok_or_else(Failure::ends)??;
        wait::look(&mut meanwhile)?;
        Ok(model)
    });
    opened.map(Model::new)
}

struct OpenOptions {
    device: Option<Device>,
    engine: EngineOptions,
    model: ModelOptions,
    device_budget: Option<u64>,
}

impl OpenOptions {
    fn read(json: &str) -> Result<Self, Failure> {
        let mut fields: Map<String, Value> = serde_json::from_str(json)
            .map_err(|error| Failure::caller(format!("options: {error}")))?;
        let device = text(&mut fields, "device")?.map(|device| device.parse()).transpose();
        let device =
            device.map_err(|error: nestling::DeviceError| Failure::caller(error.to_string()))?;
        let asked = Self {
            device,
            engine: EngineOptions {
                threads: count(&mut fields, "threads")?,
                memory_budget: number(&mut fields, "memory_budget")?,
                ..EngineOptions::default()
            },
            model: ModelOptions {
                level: level(number(&mut fields, "level")?)?,
                weight_budget: number(&mut fields, "weight_budget")?,
                context_length: count(&mut fields, "context_length")?,
                kv_tokens: count(&mut fields, "kv_tokens")?,
                kv_dtype: kv_dtype(text(&mut fields, "kv_dtype")?.as_deref())?,
                residence: residence(text(&mut fields, "residence")?.as_deref())?,
                ..ModelOptions::default()
            },
            device_budget: number(&mut fields, "device_budget")?,
        };
        match fields.keys().next() {
            Some(unknown) => Err(Failure::caller(format!("options: {unknown}: unknown"))),
            None => Ok(asked),
        }
    }

    /// Refuses options of an engine for a model that shares one.
    fn check_shared(&self, is_shared: bool) -> Result<(), Failure> {
        let EngineOptions { threads, memory_budget, .. } = &self.engine;
        if is_shared && (threads.is_some() || memory_budget.is_some()) {
            return Err(Failure::caller("memory_budget and threads are options of the engine"));
        }
        Ok(())
    }

    fn builder(self, path: &std::path::Path) -> Builder {
        let Self { device, engine, model, device_budget } = self;
        let mut builder = Builder::new(path)
            .engine(|options| *options = engine)
            .model(|options| *options = model);
        if let Some(device) = device {
            builder = builder.device(device);
        }
        match device_budget {
            Some(bytes) => builder.device_budget(bytes),
            None => builder,
        }
    }
}

fn wrong(name: &str, expected: &str, found: &dyn std::fmt::Display) -> Failure {
    Failure::caller(format!("{name}: expected {expected}, found {found}"))
}

fn number(fields: &mut Map<String, Value>, name: &str) -> Result<Option<u64>, Failure> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, "a number from 0 to 2^64 - 1", &value)),
        },
    }
}

fn count(fields: &mut Map<String, Value>, name: &str) -> Result<Option<usize>, Failure> {
    let number = number(fields, name)?;
    let fits = |number: u64| {
        usize::try_from(number).map_err(|_| wrong(name, "a number of this machine", &number))
    };
    number.map(fits).transpose()
}

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Failure> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong(name, "a text", &other)),
    }
}

fn level(bits: Option<u64>) -> Result<Option<Level>, Failure> {
    let Some(bits) = bits else { return Ok(None) };
    let level = u8::try_from(bits).ok().and_then(Level::from_bits);
    level.map(Some).ok_or_else(|| wrong("level", "2, 3, 4, 6 or 8", &bits))
}

fn kv_dtype(said: Option<&str>) -> Result<KvDtype, Failure> {
    match said {
        None | Some("f16") => Ok(KvDtype::F16),
        Some("f32") => Ok(KvDtype::F32),
        Some("int8") => Ok(KvDtype::Int8),
        Some(other) => Err(wrong("kv_dtype", "f16, f32 or int8", &other)),
    }
}

fn residence(said: Option<&str>) -> Result<Residence, Failure> {
    match said {
        None | Some("auto") => Ok(Residence::Auto),
        Some("owned") => Ok(Residence::Owned),
        Some("streamed") => Ok(Residence::Streamed),
        Some("lazy") => Ok(Residence::Lazy),
        Some(other) => Err(wrong("residence", "auto, owned, streamed or lazy", &other)),
    }
}
