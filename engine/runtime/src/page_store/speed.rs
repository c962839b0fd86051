//! Measured read speed of the page store.

/// Weight of the newest read in the exponential mean.
const NEWEST: f64 = 0.2;
/// Decay of the estimate with each rejected read, so that one slow moment of a disk does not disable reads
/// forever.
const DOUBT: f64 = 0.9;

/// Exponential mean of the read times. `None` before the first read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadSpeed {
    seconds_per_byte: Option<f64>,
}

impl ReadSpeed {
    /// Adds a measured read. Reads of zero duration are ignored, since no clock is available.
    pub fn measured(&mut self, bytes: u64, seconds: f64) {
        if bytes == 0 || seconds <= 0.0 {
            return;
        }
        let new = seconds / bytes as f64;
        // Default: the first read sets the mean.
        let old = self.seconds_per_byte.unwrap_or(new);
        self.seconds_per_byte = Some(old + NEWEST * (new - old));
    }

    /// Returns true if `bytes` bytes can be read within `seconds`. Each rejection lowers the estimate.
    pub fn pays(&mut self, bytes: u64, seconds: f64) -> bool {
        // Default: before any measurement, reading provides the first one.
        let Some(known) = self.seconds_per_byte else { return true };
        let pays = known * bytes as f64 <= seconds;
        if !pays {
            self.seconds_per_byte = Some(known * DOUBT);
        }
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::ReadSpeed;

    #[test]
    fn what_takes_longer_is_not_read_for_a_while() {
        let mut speed = ReadSpeed::default();
        assert!(speed.pays(1 << 40, 0.0), "nothing was measured");
        speed.measured(1000, 2.0);
        speed.measured(1000, 0.0);
        assert!(speed.pays(1000, 2.0) && speed.pays(500, 1.0));
        let tries = (0..100).take_while(|_| !speed.pays(1000, 1.0)).count();
        assert_eq!(tries, 7, "0.9 to the power of 7 is below a half");
        speed.measured(1000, 0.0001);
        assert!(speed.pays(1000, 1.0));
    }
}
