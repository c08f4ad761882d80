//! Resident memory of a process, sampled: now, at its peak, and over time.

/// What was sampled over all lives of a process.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Bytes at the last sample, 0 while there is no process.
    pub now_bytes: u64,
    /// Most bytes of any life, as far as it was sampled.
    pub peak_bytes: u64,
    samples: Vec<u64>,
}

impl Memory {
    /// Reads what process `pid` holds. A process that ends meanwhile holds nothing.
    pub(super) fn sample(&mut self, pid: u32) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        self.now_bytes = field_bytes(&status, "VmRSS:");
        self.peak_bytes = self.peak_bytes.max(field_bytes(&status, "VmHWM:")).max(self.now_bytes);
        self.keep();
    }

    /// There is no process at the moment.
    pub(super) fn absent(&mut self) {
        self.now_bytes = 0;
        self.keep();
    }

    fn keep(&mut self) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(self.now_bytes);
        }
    }

    /// Mean of the middle third of all samples and of the last third, in bytes; `None` for less than three.
    pub fn thirds(&self) -> Option<(u64, u64)> {
        let third = self.samples.len() / 3;
        let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
        (third > 0).then(|| (mean(&self.samples[third..2 * third]), mean(&self.samples[2 * third..])))
    }
}

fn field_bytes(status: &str, name: &str) -> u64 {
    let field = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = field.and_then(|rest| rest.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}

/// A day of samples, one a second.
const SAMPLES_MAX: usize = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_between_the_thirds() {
        assert_eq!(field_bytes("Name:\tx\nVmHWM:\t    12 kB\nVmRSS:\t     8 kB\n", "VmRSS:"), 8_192);
        let mut memory = Memory::default();
        assert_eq!(memory.thirds(), None);
        for mib in [9, 9, 4, 4, 5, 7] {
            memory.now_bytes = mib << 20;
            memory.keep();
        }
        assert_eq!(memory.thirds(), Some((4 << 20, 6 << 20)));
        memory.sample(std::process::id());
        assert!(memory.now_bytes > 0 && memory.peak_bytes >= memory.now_bytes);
    }
}
