//! Export of a recording in the Trace Event format, for Perfetto and Chrome's `about:tracing`.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Activity, ActivityKind, Recording, StepRecord};
use crate::reads::ReadClass;

const PROCESS: u32 = 1;

/// Thread ids of the trace: steps, compute, then one id per lane of overlapping reads.
const STEPS: usize = 1;
const COMPUTE: usize = 2;
const READS: usize = 3;

impl Recording {
    /// Writes the recording as Trace Event JSON.
    ///
    /// # Errors
    /// Returns an error if a write fails.
    pub fn write_chrome_trace(&self, mut out: impl Write) -> io::Result<()> {
        let (lanes, lane_count) = self.lanes();
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        let mut names = vec![(STEPS, "steps".to_owned()), (COMPUTE, "compute".to_owned())];
        names.extend((0..lane_count).map(|lane| (READS + lane, format!("reads {}", lane + 1))));
        for (index, (row, name)) in names.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma}\n{}", row_name(row, &name))?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            write!(out, ",\n{}", step_event(number, step))?;
        }
        for (activity, row) in self.activities.iter().zip(lanes) {
            write!(out, ",\n{}", event(activity, row))?;
        }
        writeln!(out, "\n]}}")?;
        out.flush()
    }

    /// Returns the thread id of each activity and the number of read lanes. A read goes to the first lane
    /// whose previous read has ended.
    fn lanes(&self) -> (Vec<usize>, usize) {
        let is_read = |activity: &Activity| matches!(activity.what, ActivityKind::Read { .. });
        let mut rows = vec![COMPUTE; self.activities.len()];
        let mut reads: Vec<usize> =
            (0..rows.len()).filter(|index| is_read(&self.activities[*index])).collect();
        reads.sort_by_key(|index| self.activities[*index].start_ns);
        let mut ends: Vec<u64> = Vec::new();
        for index in reads {
            let activity = &self.activities[index];
            let free = ends.iter().position(|end| *end <= activity.start_ns);
            let lane = free.unwrap_or_else(|| {
                ends.push(0);
                ends.len() - 1
            });
            ends[lane] = activity.end_ns;
            rows[index] = READS + lane;
        }
        (rows, ends.len())
    }
}

fn row_name(row: usize, name: &str) -> Value {
    json!({
        "name": "thread_name", "ph": "M", "pid": PROCESS, "tid": row, "args": {"name": name},
    })
}

/// Builds a complete event ("X"). Times are written in microseconds.
fn boxed(
    name: String,
    category: &str,
    row: usize,
    start_ns: u64,
    end_ns: u64,
    arguments: Value,
) -> Value {
    json!({
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": PROCESS,
        "tid": row,
        "ts": start_ns as f64 / 1e3,
        "dur": end_ns.saturating_sub(start_ns) as f64 / 1e3,
        "args": arguments,
    })
}

fn step_event(number: usize, step: &StepRecord) -> Value {
    let arguments = json!({
        "rows": step.rows,
        "hit_rate": step.streaming.hit_rate(),
        "read_bytes": step.streaming.read_total(),
        "recalled_bytes": step.streaming.recalled_bytes,
        "host_bytes": step.streaming.host_bytes,
        "missing_bytes": step.streaming.missing_total(),
        "wait_ns": step.streaming.wait_ns,
    });
    boxed(format!("step {number}"), "step", STEPS, step.start_ns, step.end_ns, arguments)
}

fn event(activity: &Activity, row: usize) -> Value {
    let layer = activity.layer;
    let (name, category, arguments) = match activity.what {
        ActivityKind::Dense => (format!("layer {layer}"), "compute", json!({"layer": layer})),
        ActivityKind::Experts { count } => {
            let arguments = json!({"layer": layer, "experts": count});
            (format!("{count} experts"), "compute", arguments)
        }
        ActivityKind::Wait => ("wait".to_owned(), "wait", json!({"layer": layer})),
        ActivityKind::Read { plane, bytes, class, queued_ns } => {
            let category = match class {
                ReadClass::Urgent => "read",
                ReadClass::Idle => "read ahead",
                ReadClass::Background => "read in the background",
            };
            let arguments = json!({
                "layer": layer,
                "expert": plane.expert,
                "plane": plane.plane.level().bits(),
                "bytes": bytes,
                "class": category,
                "queued_us": queued_ns as f64 / 1e3,
            });
            let name = format!("P{} of expert {}.{}", plane.plane.level(), layer, plane.expert);
            (name, category, arguments)
        }
    };
    boxed(name, category, row, activity.start_ns, activity.end_ns, arguments)
}
