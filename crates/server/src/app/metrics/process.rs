//! Process metrics under the standard Prometheus names. Memory, threads and start time are read from `/proc` and
//! omitted on systems without it.

use std::fs;

use prometheus_client::{
    metrics::{
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};
use redrive_engine::clock;
use rustix::process::{Resource, getrlimit};

/// Values of a process from `/proc`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    threads: i64,
    /// Start time in seconds since the Unix epoch.
    started: f64,
    virtual_bytes: i64,
    resident_bytes: i64,
}

/// Registers the metrics of this process.
pub(super) fn list(registry: &mut Registry) {
    let help = "CPU time used by this process";
    let used = clock::processor_time().as_secs_f64();
    registry.register("process_cpu_seconds", help, ConstCounter::new(used));
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    if let Some(process) =
        Process::parse(&read("/proc/self/stat"), &read("/proc/stat"), ticks, rustix::param::page_size())
    {
        process.list(registry);
    }
    // macOS has no /proc. Linux has /dev/fd too, but not in every container.
    if let Ok(open) = fs::read_dir("/proc/self/fd").or_else(|_| fs::read_dir("/dev/fd")) {
        // One descriptor belongs to this directory listing itself.
        let open = open.count().saturating_sub(1);
        whole(registry, "process_open_fds", "Open file descriptors", i64::try_from(open).unwrap_or(i64::MAX));
    }
    // Omitted if there is no limit.
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        whole(registry, "process_max_fds", "Maximum number of open file descriptors", limit);
    }
}

fn whole(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

impl Process {
    /// Parses `/proc/self/stat`, and the boot time from `/proc/stat`.
    fn parse(stat: &str, system: &str, ticks: f64, page: usize) -> Option<Self> {
        // The program name is in parentheses and may contain any character.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Field numbers as in proc(5): the first field here is number 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<i64>().ok();
        let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
        let booted: f64 = booted.trim().parse().ok()?;
        Some(Self {
            threads: field(20)?,
            started: booted + field(22)? as f64 / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.saturating_mul(i64::try_from(page).ok()?),
        })
    }

    fn list(&self, registry: &mut Registry) {
        let help = "Start time of this process, since the Unix epoch";
        registry.register("process_start_time_seconds", help, ConstGauge::new(self.started));
        whole(registry, "process_resident_memory_bytes", "Resident memory", self.resident_bytes);
        whole(registry, "process_virtual_memory_bytes", "Virtual memory", self.virtual_bytes);
        whole(registry, "process_threads", "Threads of this process", self.threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_is_parsed_with_brackets_in_the_program_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 7 0 1000 123456 300 18446744073709551615 1";
        let process = Process::parse(stat, "cpu 1 2\nbtime 1700000000\n", 100.0, 4096).unwrap();
        let expected = Process {
            threads: 7,
            started: 1_700_000_010.0,
            virtual_bytes: 123_456,
            resident_bytes: 300 * 4096,
        };
        assert_eq!(process, expected);
        assert_eq!(Process::parse("", "", 100.0, 4096), None);
    }

    #[test]
    fn this_process_is_reported() {
        let mut registry = Registry::default();
        list(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let mut expected = vec!["process_cpu_seconds_total ", "process_open_fds ", "process_max_fds "];
        if cfg!(target_os = "linux") {
            expected.extend(["process_threads ", "process_resident_memory_bytes "]);
        }
        for name in expected {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
        }
    }
}
