//! The log: one line per thing worth knowing, on standard error.

use tracing_subscriber::{EnvFilter, filter::ParseError};

/// Starts writing the log.
pub(crate) fn start(level: &str) -> Result<(), ParseError> {
    let filter: EnvFilter = level.parse()?;
    let ansi = std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A second start in one process keeps the first one's log.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .try_init();
    Ok(())
}
