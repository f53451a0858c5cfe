//! The log: one line per thing worth knowing, on standard error.

use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Says what is wrong with a filter, if anything is.
pub(crate) fn check(level: &str) -> Result<(), String> {
    for part in level.split(',') {
        let name = part.rsplit_once('=').map_or(part, |(_, name)| name);
        if name.parse::<LevelFilter>().is_err() {
            return Err(format!("\"{part}\" names no level; use off, error, warn, info, debug or trace"));
        }
    }
    level.parse::<EnvFilter>().map(drop).map_err(|error| error.to_string())
}

/// Starts writing the log. The filter was checked with the other settings.
pub(crate) fn start(level: &str) {
    // What this library has to say of a broker that is away is said once, by us.
    let filter = EnvFilter::new(format!("lapin=off,{level}"));
    let ansi = std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A second start in one process keeps the first one's log.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .try_init();
}
