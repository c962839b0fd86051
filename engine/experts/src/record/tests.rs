use nestling_formats::Plane;
use serde_json::Value;

use super::*;

fn activity(what: ActivityKind, start_ns: u64, end_ns: u64) -> Activity {
    Activity { what, layer: 3, start_ns, end_ns }
}

fn read(start_ns: u64, end_ns: u64) -> Activity {
    let plane = PlaneId { layer: 3, expert: 7, plane: Plane::P3 };
    let what = ActivityKind::Read { plane, bytes: 4096, class: ReadClass::Idle, queued_ns: 5 };
    activity(what, start_ns, end_ns)
}

#[test]
fn what_does_not_fit_is_counted() {
    let recorder = Recorder::new(RecordOptions { activities_max: 2, steps_max: 0 });
    for _ in 0..5 {
        recorder.add(activity(ActivityKind::Wait, 1, 2));
        recorder.add_step(StepRecord {
            rows: 1,
            start_ns: 0,
            end_ns: 1,
            streaming: StreamStats::default(),
        });
    }
    let recording = recorder.take();
    assert_eq!((recording.activities.len(), recording.activities_dropped), (2, 3));
    assert_eq!((recording.steps.len(), recording.steps_dropped), (0, 0));
    assert_eq!(recorder.take(), Recording::default());
}

#[test]
fn times_of_reads_are_moved_to_the_recorders() {
    let recorder = Recorder::new(RecordOptions { activities_max: 1, steps_max: 0 });
    let plane = PlaneId { layer: 1, expert: 2, plane: Plane::P2 };
    let timing = ReadTiming { queued_ns: 10, started_ns: 30, finished_ns: 90 };
    std::thread::sleep(std::time::Duration::from_millis(2));
    recorder.add_read(plane, 5, ReadClass::Urgent, timing, Moment::now());
    let found = recorder.take().activities[0];
    assert!(found.start_ns >= 2_000_030 && found.end_ns == found.start_ns + 60, "{found:?}");
    let what = ActivityKind::Read { plane, bytes: 5, class: ReadClass::Urgent, queued_ns: 20 };
    assert_eq!(found.what, what);
}

#[test]
fn reads_at_once_lie_on_rows_of_their_own() {
    let recording = Recording {
        activities: vec![
            read(0, 10_000),
            activity(ActivityKind::Experts { count: 4 }, 2_000, 6_000),
            read(5_000, 12_000),
            read(10_000, 20_000),
            activity(ActivityKind::Dense, 6_000, 7_000),
        ],
        steps: vec![StepRecord {
            rows: 1,
            start_ns: 0,
            end_ns: 20_000,
            streaming: StreamStats { wanted_bytes: 100, ..StreamStats::default() },
        }],
        ..Recording::default()
    };
    let mut out = Vec::new();
    recording.write_chrome_trace(&mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let rows: Vec<u64> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| event["tid"].as_u64().unwrap())
        .collect();
    assert_eq!(rows, [1, 3, 2, 4, 3, 2]);
    let names = events.iter().filter(|event| event["ph"] == "M").count();
    assert_eq!(names, 4);
    let first = events.iter().find(|event| event["cat"] == "read ahead").unwrap();
    assert_eq!((first["ts"].as_f64(), first["dur"].as_f64()), (Some(0.0), Some(10.0)));
    assert_eq!((&first["args"]["bytes"], &first["args"]["plane"]), (&4096.into(), &3.into()));
}
