//! `redrive clock`: the time that a running installation uses, and its confirmation after a jump.

use clap::Subcommand;
use serde_json::Value;

use super::{CliError, ServerArgs, block_on, keys::admin_key, remote::Remote};
use crate::config::Profile;

#[derive(Subcommand)]
pub(super) enum ClockCommand {
    /// Print the time that a running server uses, and whether its clock has jumped.
    Show(ServerArgs),
    /// Confirm the current time after a clock jump, so that deliveries expire and old data is deleted by it.
    Confirm(ServerArgs),
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
pub(super) fn run(command: &ClockCommand) -> Result<(), CliError> {
    let (server, method, path) = match command {
        ClockCommand::Show(server) => (server, "GET", "/v1/clock"),
        ClockCommand::Confirm(server) => (server, "POST", "/v1/clock/confirm"),
    };
    let clock = block_on(call(server, method, path))?;
    let text = |name: &str| clock[name].as_str().unwrap_or("?").to_owned();
    println!("time            {}", text("now"));
    println!("confirmed time  {}", text("confirmed_now"));
    match clock["unconfirmed_jump_seconds"].as_f64() {
        Some(jump) => println!("unconfirmed     the clock jumped by {jump:+.1} s"),
        None => println!("unconfirmed     none"),
    }
    Ok(())
}

async fn call(server: &ServerArgs, method: &str, path: &str) -> Result<Value, CliError> {
    let config = server.load(Profile::Serve)?;
    let key = admin_key(&config, &config.database.backend()?).map_err(|_| {
        CliError::message("an admin key is required; set REDRIVE_ADMIN_KEY to an admin key of the server")
    })?;
    Remote::new(&config, key, "").call(method, path, None).await
}
