//! `nestling doctor`: reports what limits speed on this machine and suggests improvements.

use crate::args::DoctorArgs;
use crate::bytes::ByteSize;
use crate::console::{Console, write_out};
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::kernels::kernels;
use crate::levels::level_sizes;
use crate::linux::{self, Disk};
use crate::located::NamedModel;
use crate::speed::Machine;
use crate::stores::open_store;
use nestling::formats::store::Store;
use nestling::system::{MemoryState, SystemFiles};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Readahead in bytes from which mapped files cause many unnecessary reads.
const READAHEAD_MUCH: u64 = 1 << 20;

/// Speed of random reads in bytes per second that a rotating disk does not reach.
const DISK_THAT_SEEKS: f64 = 250e6;

struct Diagnosis {
    path: PathBuf,
    store: Arc<Store>,
    cores: usize,
    kernels: &'static str,
    memory: Option<MemoryState>,
    huge_pages: Option<String>,
    io_uring_allowed: Option<bool>,
    disk: Option<Disk>,
    machine: Machine,
}

/// A fact or suggestion for the user.
#[derive(Debug, PartialEq)]
struct Finding {
    about: &'static str,
    words: String,
}

pub fn doctor(args: &DoctorArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let named = NamedModel::of_files(args.path.as_ref().or(args.model.as_ref()), &args.hub);
    let path = named.locate(console, interrupt)?.path;
    let store = open_store(&path)?;
    let files = SystemFiles::default();
    let machine = Machine::measure(&args.machine, &store, console)?;
    let examined = Diagnosis {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        kernels: kernels()?.name(),
        memory: MemoryState::read(&files),
        huge_pages: linux::huge_pages(&files),
        io_uring_allowed: linux::io_uring_allowed(&files),
        disk: linux::disk_of(&files, &path),
        machine,
        path,
        store: Arc::clone(&store),
    };
    write_out(&match args.format.is_json() {
        true => format!("{:#}\n", examined.as_json()),
        false => examined.as_text(),
    })
}

impl Diagnosis {
    fn as_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, words: String| {
            let _ = writeln!(text, "{name:<12} {words}");
        };
        let plural = if self.cores == 1 { "" } else { "s" };
        line("processor", format!("{} core{plural}, {} kernels", self.cores, self.kernels));
        if let Some(memory) = &self.memory {
            let group = memory.group.map_or(String::new(), |group| {
                format!("; a control group allows {}", ByteSize(group.limit_bytes))
            });
            let (total, free) = (ByteSize(memory.total_bytes), ByteSize(memory.free_bytes()));
            line("memory", format!("{total}, {free} free{group}"));
        }
        line("", format!("{} by {} threads", self.machine.memory_words(), self.machine.threads));
        line("large pages", self.huge_pages.clone().unwrap_or("not known".into()));
        line("disk", self.disk_words());
        for words in self.machine.disk_lines() {
            line("", words);
        }
        line(
            "io_uring",
            match self.io_uring_allowed {
                Some(true) => "allowed".into(),
                Some(false) => "switched off by the system".into(),
                None => "not known".to_owned(),
            },
        );
        text += "\n";
        for finding in self.findings() {
            let _ = writeln!(text, "{:<12} {}", finding.about, finding.words);
        }
        text
    }

    fn disk_words(&self) -> String {
        let Some(disk) = &self.disk else { return "not a disk of its own".into() };
        let kind = if self.seeks() { ", rotating" } else { "" };
        let block =
            disk.block_bytes.map_or(String::new(), |bytes| format!(", blocks of {bytes} B"));
        let ahead = disk
            .readahead_bytes
            .map_or(String::new(), |bytes| format!(", readahead {} KiB", bytes / 1024));
        format!("{}{kind}{block}{ahead}", disk.name)
    }

    /// Returns true if the disk is rotating. Virtual disks often report rotation, so the measured speed is
    /// checked too.
    fn seeks(&self) -> bool {
        let rotates = self.disk.as_ref().and_then(|disk| disk.rotates) == Some(true);
        let speeds = self.machine.speed.disk.iter().map(|point| point.bytes_per_s);
        rotates && speeds.fold(0.0, f64::max) < DISK_THAT_SEEKS
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut find = |about, words| findings.push(Finding { about, words });
        find("limit", self.limit());
        if self.huge_pages.as_deref() == Some("never") {
            find(
                "large pages",
                "are switched off, so weights are found a little slower; the system \
                gives them after `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
                    .into(),
            );
        }
        if self.io_uring_allowed == Some(false) {
            find(
                "io_uring",
                "is switched off, so disks are read by a few threads instead; nothing \
                is lost on most disks"
                    .into(),
            );
        }
        if let Some(disk) = &self.disk {
            if self.seeks() {
                find("disk", "rotates, or is a slow virtual disk: keep the store on an SSD".into());
            }
            if disk.readahead_bytes.is_some_and(|bytes| bytes >= READAHEAD_MUCH) {
                find(
                    "readahead",
                    "is long, which makes `--load-mode mmap` read far more than it \
                    uses where memory is short; streamed experts are not read ahead"
                        .into(),
                );
            }
        }
        findings
    }

    /// Returns true if the store has experts.
    fn has_experts(&self) -> bool {
        self.store.groups().iter().any(|group| group.id.expert().is_some())
    }

    /// Describes the bottleneck for this store on this machine.
    fn limit(&self) -> String {
        let bytes = level_sizes(&self.store);
        let level = self.store.level();
        let whole = bytes.iter().find(|size| size.level == level).map_or(0, |size| size.bytes);
        match &self.memory {
            Some(memory) if memory.default_budget() < whole => {
                let result = match (self.has_experts(), self.store.is_derived()) {
                    (false, _) => "the model does not run, since dense weights are not streamed",
                    (true, false) => "experts are streamed from disk",
                    (true, true) => {
                        "experts are streamed from disk, whole; a store's lower levels read less"
                    }
                };
                format!(
                    "{} of weights at level {level} do not fit the {} that are free: {result}",
                    ByteSize(whole),
                    ByteSize(memory.default_budget()),
                )
            }
            _ => format!(
                "all {} at level {level} fit in memory: memory bandwidth is the limit",
                ByteSize(whole)
            ),
        }
    }

    fn as_json(&self) -> Value {
        let findings = self.findings().into_iter();
        let findings = findings.map(|f| json!({"about": f.about, "words": f.words}));
        json!({
            "store": self.path.display().to_string(),
            "cores": self.cores,
            "kernels": self.kernels,
            "memory": self.memory.map(|memory| json!({
                "total_bytes": memory.total_bytes,
                "available_bytes": memory.available_bytes,
                "free_bytes": memory.free_bytes(),
                "default_budget_bytes": memory.default_budget(),
                "group_limit_bytes": memory.group.map(|group| group.limit_bytes),
            })),
            "huge_pages": self.huge_pages,
            "io_uring_allowed": self.io_uring_allowed,
            "disk": self.disk.as_ref().map(|disk| json!({
                "name": disk.name,
                "readahead_bytes": disk.readahead_bytes,
                "block_bytes": disk.block_bytes,
                "rotates": disk.rotates,
            })),
            "machine": self.machine.as_json(),
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}
