//! `redrive status`: shows the health of a running installation as a table or JSON, with an exit code for scripts.

use std::{io::Write, process::ExitCode, time::Duration};

use clap::Args;
use comfy_table::{Table, presets};
use serde_json::Value;

use super::{CliError, ServerArgs, block_on, keys::admin_key, remote::Remote};
use crate::config::Profile;

#[derive(Args)]
pub(super) struct StatusArgs {
    /// Print the JSON of GET /v1/status.
    #[arg(long)]
    json: bool,
    /// Only ask whether the server is ready, without a key. Exit code: 0 ready, 1 not ready; for health checks.
    #[arg(long, conflicts_with = "json")]
    ready: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Exit codes that monitoring systems expect of a check.
const WARNING: u8 = 1;
const CRITICAL: u8 = 2;
pub(super) const UNKNOWN: u8 = 3;
/// Time for `--ready`: shorter than the usual time limit of a health check.
const READY_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) fn run(args: &StatusArgs) -> ExitCode {
    if args.ready {
        return match block_on(check_ready(&args.server)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match block_on(load_status(&args.server)) {
        Ok(status) => {
            print(&status, args.json);
            match status["status"].as_str() {
                Some("ok") => ExitCode::SUCCESS,
                Some("warning") => WARNING.into(),
                Some("critical") => CRITICAL.into(),
                _ => UNKNOWN.into(),
            }
        }
        Err(error) => {
            eprintln!("error: {error}");
            UNKNOWN.into()
        }
    }
}

/// Fails unless the server accepts work.
async fn check_ready(server: &ServerArgs) -> Result<(), CliError> {
    let config = server.load(Profile::Serve)?;
    let remote = Remote::new(&config, String::new(), "");
    let Ok(response) = tokio::time::timeout(READY_TIMEOUT, remote.request("GET", "/readyz", None)).await
    else {
        return Err(CliError::message(format!("no response within {} s", READY_TIMEOUT.as_secs())));
    };
    let (status, body) = response?;
    match status.is_success() {
        true => Ok(()),
        false => Err(CliError::message(format!("not ready: {}", String::from_utf8_lossy(&body).trim()))),
    }
}

async fn load_status(server: &ServerArgs) -> Result<Value, CliError> {
    let config = server.load(Profile::Serve)?;
    let key = admin_key(&config, &config.database.backend()?).map_err(|_| {
        CliError::message("an admin key is required; set REDRIVE_ADMIN_KEY to an admin key of the server")
    })?;
    let request = Remote::new(&config, key, "").call("GET", "/v1/status", None).await;
    request.map_err(|error| match error {
        CliError::Message(message) if message.starts_with("the server returned 401") => {
            CliError::message("REDRIVE_ADMIN_KEY is not an admin key of this server; set it to one")
        }
        error => error,
    })
}

/// Prints the status. Write errors are ignored, so a reader that closes the pipe early still gets the exit code.
fn print(status: &Value, json: bool) {
    let mut shown = if json { format!("{status:#}\n") } else { format!("{}\n", table(status).trim_fmt()) };
    for finding in status["findings"].as_array().into_iter().flatten().filter(|_| !json) {
        shown += &format!("{:<8}  {}\n", text(&finding["level"]), text(&finding["message"]));
    }
    let _ = std::io::stdout().write_all(shown.as_bytes());
}

fn table(status: &Value) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("status", text(&status["status"]));
    for node in status["nodes"].as_array().into_iter().flatten() {
        row("node", node_line(node, &status["node"]));
    }
    let store = &status["store"];
    row("store", format!("{} {}", text(&store["kind"]), text(&store["state"])));
    if store["durability"].is_object() {
        row("durability", durability_line(&store["durability"]));
    }
    row("redis", or(&status["redis"], "none"));
    row("rabbitmq", or(&status["rabbitmq"], "none"));
    row("email", or(&status["email"], "none"));
    let queue = &status["queue"];
    row("queue", format!("{} waiting, {} leased", or(&queue["depth"], "?"), or(&queue["leased"], "?")));
    row("lag", queue["lag_seconds"].as_f64().map_or("?".into(), |lag| format!("{lag:.1} s")));
    row("slots", format!("{}/{} in use", text(&status["slots"]["used"]), text(&status["slots"]["total"])));
    let circuits = &status["circuits"];
    let (open, half, long) = (&circuits["open"], &circuits["half_open"], &circuits["open_over_1h"]);
    row("circuits", format!("{} open ({} for over 1 h), {} half-open", text(open), text(long), text(half)));
    row("dead letters", or(&status["dead_letters"], "?"));
    table
}

/// Formats a node as one line.
fn node_line(node: &Value, request: &Value) -> String {
    let pools: Vec<_> = node["pools"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let sends =
        if pools.is_empty() { "sends nothing".into() } else { format!("sends for {}", pools.join(", ")) };
    let this = if node["epoch"] == request["epoch"] { " (this node)" } else { "" };
    format!("{}: {}, {sends}{this}", text(&node["name"]), text(&node["role"]))
}

/// Formats the PostgreSQL settings that decide whether commits survive a crash.
fn durability_line(durability: &Value) -> String {
    let on_or_off = |setting: &str| if durability[setting] == Value::Bool(true) { "on" } else { "off" };
    format!(
        "synchronous_commit {}, fsync {}, full_page_writes {}",
        text(&durability["synchronous_commit"]),
        on_or_off("fsync"),
        on_or_off("full_page_writes")
    )
}

/// Formats a JSON value, strings without quotes.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn or(value: &Value, none: &str) -> String {
    if value.is_null() { none.to_owned() } else { text(value) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_values_are_shown_as_unknown() {
        let status = json!({
            "status": "critical", "nodes": [], "redis": null,
            "store": {
                "kind": "PostgreSQL", "state": "down",
                "durability": {"synchronous_commit": "on", "fsync": true, "full_page_writes": false},
            },
            "rabbitmq": "up", "email": "down", "queue": {"depth": null, "leased": null, "lag_seconds": null},
            "slots": {"used": 1, "total": 8}, "circuits": {"open": 2, "half_open": 0, "open_over_1h": 1},
            "dead_letters": null,
        });
        let shown = table(&status).to_string();
        let lines: Vec<_> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "status critical",
                "store PostgreSQL down",
                "durability synchronous_commit on, fsync on, full_page_writes off",
                "redis none",
                "rabbitmq up",
                "email down",
                "queue ? waiting, ? leased",
                "lag ?",
                "slots 1/8 in use",
                "circuits 2 open (1 for over 1 h), 0 half-open",
                "dead letters ?",
            ]
        );
    }
}
