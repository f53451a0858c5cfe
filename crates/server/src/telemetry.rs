//! Logging to standard error, as text for people or as JSON for machines.

mod json;
mod log_throttle;

use std::fmt;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::{FilterExt as _, LevelFilter},
    fmt::layer,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

pub(crate) use log_throttle::SuppressedLines;

use crate::config::Log;

/// Format of log records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Validates a filter. The error names the problem.
pub(crate) fn check(level: &str) -> Result<(), String> {
    for part in level.split(',') {
        let name = part.rsplit_once('=').map_or(part, |(_, name)| name);
        if name.parse::<LevelFilter>().is_err() {
            return Err(format!("\"{part}\" is not a level; use off, error, warn, info, debug or trace"));
        }
    }
    level.parse::<EnvFilter>().map(drop).map_err(|error| error.to_string())
}

/// Starts logging. The filter has been validated with the settings. A long-running process must run
/// [`SuppressedLines::report_suppressed`] to log how many records were suppressed.
pub(crate) fn start(log: &Log) -> SuppressedLines {
    // The library's own log is off: the engine logs an unavailable broker once.
    let filter = EnvFilter::new(format!("lapin=off,{}", log.level));
    let (repeats, suppressed) = log_throttle::limited();
    let filter = filter.and(repeats);
    let ansi = std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    let registry = tracing_subscriber::registry();
    // A second start in one process keeps the first subscriber.
    let _ = match log.format {
        LogFormat::Text => {
            let lines = layer().with_writer(std::io::stderr).with_ansi(ansi);
            registry.with(lines.with_filter(filter)).try_init()
        }
        LogFormat::Json => {
            let lines = layer().event_format(json::Lines).fmt_fields(json::Fields);
            let lines = lines.with_writer(std::io::stderr).with_ansi(false);
            registry.with(lines.with_filter(filter)).try_init()
        }
    };
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        tracing::error!(location, error = panic.payload_as_str(), "panic in task");
    }));
    suppressed
}
