//! Links between ranks, by name or from a file.

use crate::failure::{Failure, Result};
use nestling::formats::open_regular;
use nestling_plan::plan::{DiskSpeed, MachineSpeed};
use nestling_plan::ranks::{Fabric, MeasuredExchange, Operation};
use serde::Deserialize;
use std::io::Read;
use std::path::Path;

/// Maximum size of a topology file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Links between ranks, with the speed of each rank if it is not that of this machine.
pub struct Topology {
    pub name: String,
    pub fabric: Fabric,
    memory_bytes_per_s: Option<f64>,
    disk_bytes_per_s: Option<f64>,
}

/// Contents of a topology file. Times are in seconds, and speeds in bytes per second.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    latency_s: f64,
    #[serde(default)]
    message_s: f64,
    bytes_per_s: f64,
    memory_bytes_per_s: Option<f64>,
    disk_bytes_per_s: Option<f64>,
    #[serde(default)]
    measured: Vec<MeasuredRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredRow {
    operation: String,
    bytes: f64,
    ranks: usize,
    seconds: f64,
}

impl Topology {
    /// Returns the named preset, or reads a file.
    pub fn of(text: &str) -> Result<Self> {
        match Fabric::preset(text) {
            Some(fabric) => Ok(Self {
                name: text.to_owned(),
                fabric,
                memory_bytes_per_s: None,
                disk_bytes_per_s: None,
            }),
            None => Self::read(Path::new(text)),
        }
    }

    /// Returns all presets.
    pub fn presets() -> Result<Vec<Self>> {
        Fabric::PRESETS.into_iter().map(Self::of).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let presets = Fabric::PRESETS.join(", ");
        let advice = format!("give {presets}, or a JSON file as docs/ranks.md describes it");
        let failed = |error| Failure::file("open", path, &error).advise(advice.clone());
        let mut bytes = Vec::new();
        let file = open_regular(path).map_err(failed)?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
        let name = path.display().to_string();
        let wrong = |what: String| Failure::new(format!("{name}: {what}")).advise(advice.clone());
        let read: TopologyFile =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let times = [read.latency_s, read.message_s];
        let speeds = [Some(read.bytes_per_s), read.memory_bytes_per_s, read.disk_bytes_per_s];
        let is_speed = |speed: &f64| speed.is_finite() && *speed > 0.0;
        if !times.iter().all(|time| time.is_finite() && *time >= 0.0) {
            return Err(wrong("latency_s and message_s must be 0 or more".into()));
        }
        if !speeds.iter().flatten().all(is_speed) {
            return Err(wrong("bytes per second must be above 0".into()));
        }
        let measured = read.measured.iter().map(|row| row.exchange().map_err(&wrong));
        let fabric = Fabric {
            latency_s: read.latency_s,
            message_s: read.message_s,
            bytes_per_s: read.bytes_per_s,
            measured: measured.collect::<Result<_>>()?,
        };
        let (memory_bytes_per_s, disk_bytes_per_s) =
            (read.memory_bytes_per_s, read.disk_bytes_per_s);
        Ok(Self { name, fabric, memory_bytes_per_s, disk_bytes_per_s })
    }

    /// Returns the speed of a rank, which is that of this machine unless the file says otherwise.
    pub fn rank_speed(&self, here: &MachineSpeed) -> MachineSpeed {
        let memory_bytes_per_s = self.memory_bytes_per_s.unwrap_or(here.memory_bytes_per_s);
        let disk = match self.disk_bytes_per_s {
            Some(bytes_per_s) => vec![DiskSpeed { read_bytes: 1, bytes_per_s }],
            None => here.disk.clone(),
        };
        MachineSpeed { memory_bytes_per_s, disk }
    }
}

impl MeasuredRow {
    fn exchange(&self) -> std::result::Result<MeasuredExchange, String> {
        let Self { operation: name, bytes, ranks, seconds } = self;
        let operation = Operation::ALL.into_iter().find(|operation| operation.name() == name);
        let names = Operation::ALL.map(Operation::name).join(" or ");
        let operation = operation.ok_or_else(|| format!("operation `{name}`, expected {names}"))?;
        if !(bytes.is_finite() && *bytes >= 0.0 && seconds.is_finite() && *seconds >= 0.0) {
            return Err("bytes and seconds must be 0 or more".into());
        }
        Ok(MeasuredExchange { operation, bytes: *bytes, ranks: *ranks, seconds: *seconds })
    }
}
