//! Links between ranks, and the time of an exchange.

/// Kind of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Every rank sends one part to all others.
    AllGather,
    /// Every rank sends a different part to each other rank.
    Exchange,
}

impl Operation {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::AllGather, Self::Exchange];

    /// Returns the name in topology files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::Exchange => "exchange",
        }
    }
}

/// A measured exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredExchange {
    /// Kind of the exchange.
    pub operation: Operation,
    /// Bytes that a rank receives.
    pub bytes: f64,
    /// Number of ranks.
    pub ranks: usize,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Speed of the links between ranks.
///
/// ```
/// use nestling_plan::ranks::{Fabric, Operation};
///
/// let fabric = Fabric { latency_s: 30e-6, message_s: 1e-6, bytes_per_s: 1e9, measured: Vec::new() };
/// let time = fabric.time(Operation::AllGather, 1e6, 4);
/// assert!((time.latency_s - 33e-6).abs() < 1e-12 && (time.transfer_s - 1e-3).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// Seconds of an exchange without bytes between two ranks.
    pub latency_s: f64,
    /// Seconds that each message adds at its sender.
    pub message_s: f64,
    /// Bytes per second that a rank receives, while it sends as many.
    pub bytes_per_s: f64,
    /// Measured exchanges. They replace the formula for their kind and number of ranks.
    pub measured: Vec<MeasuredExchange>,
}

/// Duration of an exchange in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExchangeTime {
    /// Part that is independent of bytes.
    pub latency_s: f64,
    /// Part that grows with bytes.
    pub transfer_s: f64,
}

impl Fabric {
    /// Names of the presets.
    pub const PRESETS: [&'static str; 4] = ["nvlink", "pcie", "100gbe", "10gbe"];

    /// Returns a preset. Its figures are assumptions: data sheets less a tenth for bandwidth, and usual latencies of
    /// small collectives. Returns `None` for other names.
    pub fn preset(name: &str) -> Option<Self> {
        let (latency_s, message_s, bytes_per_s) = match name {
            "nvlink" => (12e-6, 0.2e-6, 400e9),
            "pcie" => (15e-6, 0.5e-6, 22e9),
            "100gbe" => (20e-6, 1e-6, 11e9),
            "10gbe" => (30e-6, 2e-6, 1.1e9),
            _ => return None,
        };
        Some(Self { latency_s, message_s, bytes_per_s, measured: Vec::new() })
    }

    /// Returns the duration of an exchange in which a rank receives `bytes` bytes. One rank exchanges nothing.
    ///
    /// Between measured sizes, the duration is interpolated linearly. Below the smallest it is that of the smallest,
    /// and above the largest it grows by [`Self::bytes_per_s`].
    pub fn time(&self, operation: Operation, bytes: f64, ranks: usize) -> ExchangeTime {
        if ranks < 2 {
            return ExchangeTime::default();
        }
        let of_kind = |point: &&MeasuredExchange| {
            point.operation == operation && point.ranks == ranks && point.seconds >= 0.0
        };
        let mut points: Vec<_> = self.measured.iter().filter(of_kind).collect();
        points.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            let latency_s = self.latency_s + self.message_s * (ranks - 1) as f64;
            return ExchangeTime { latency_s, transfer_s: bytes / self.bytes_per_s.max(1.0) };
        };
        let seconds = if bytes >= last.bytes {
            last.seconds + (bytes - last.bytes) / self.bytes_per_s.max(1.0)
        } else {
            let pair =
                points.windows(2).find(|pair| bytes < pair[1].bytes && bytes >= pair[0].bytes);
            // Default: below the smallest size, nothing is interpolated.
            pair.map_or(first.seconds, |pair| {
                let share = (bytes - pair[0].bytes) / (pair[1].bytes - pair[0].bytes);
                pair[0].seconds + share * (pair[1].seconds - pair[0].seconds)
            })
        };
        let latency_s = first.seconds.min(seconds);
        ExchangeTime { latency_s, transfer_s: seconds - latency_s }
    }
}
