//! What the kernel knows of this process, under the names that every Prometheus knows. Nothing where there is no
//! `/proc`.

use std::fs;

use prometheus_client::{
    metrics::{
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};

/// What is told of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    cpu_seconds: f64,
    threads: i64,
    /// Since the Epoch.
    started: f64,
    virtual_bytes: i64,
    resident_bytes: i64,
}

/// Lists the process's figures.
pub(super) fn list(registry: &mut Registry) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    if let Some(process) =
        Process::of(&read("/proc/self/stat"), &read("/proc/stat"), ticks, rustix::param::page_size())
    {
        process.list(registry);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is for looking.
        let open = open.count().saturating_sub(1);
        whole(registry, "process_open_fds", "Open file descriptors", i64::try_from(open).unwrap_or(i64::MAX));
    }
    if let Some(most) = most_files(&read("/proc/self/limits")) {
        whole(registry, "process_max_fds", "How many file descriptors there may be", most);
    }
}

fn whole(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

impl Process {
    /// Reads `/proc/self/stat`, and from `/proc/stat` when the machine was started.
    fn of(stat: &str, system: &str, ticks: f64, page: usize) -> Option<Self> {
        // The program's name stands in brackets and may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // As proc(5) counts them: the first one here is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<i64>().ok();
        let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
        let booted: f64 = booted.trim().parse().ok()?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
            threads: field(20)?,
            started: booted + field(22)? as f64 / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.saturating_mul(i64::try_from(page).ok()?),
        })
    }

    fn list(&self, registry: &mut Registry) {
        let help = "Processor time used by this process";
        registry.register("process_cpu_seconds", help, ConstCounter::new(self.cpu_seconds));
        let help = "When this process was started, since the Epoch";
        registry.register("process_start_time_seconds", help, ConstGauge::new(self.started));
        whole(registry, "process_resident_memory_bytes", "Memory in use", self.resident_bytes);
        whole(registry, "process_virtual_memory_bytes", "Memory set aside", self.virtual_bytes);
        whole(registry, "process_threads", "Threads of this process", self.threads);
    }
}

/// The soft limit of open files in `/proc/self/limits`; none if there is no limit.
fn most_files(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read_whatever_the_program_is_called() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 7 0 1000 123456 300 18446744073709551615 1";
        let process = Process::of(stat, "cpu 1 2\nbtime 1700000000\n", 100.0, 4096).unwrap();
        let seen = Process {
            cpu_seconds: 2.0,
            threads: 7,
            started: 1_700_000_010.0,
            virtual_bytes: 123_456,
            resident_bytes: 300 * 4096,
        };
        assert_eq!(process, seen);
        assert_eq!(Process::of("", "", 100.0, 4096), None);
        assert_eq!(
            most_files(
                "Limit Soft\nMax open files            1024                 4096                 files\n"
            ),
            Some(1024)
        );
        assert_eq!(
            most_files("Max open files            unlimited            unlimited            files\n"),
            None
        );
    }

    #[test]
    fn this_process_is_told_of() {
        let mut registry = Registry::default();
        list(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in
            ["process_cpu_seconds_total ", "process_open_fds ", "process_threads ", "process_max_fds "]
        {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
        }
    }
}
