//! `redrive test-email`: sends a test email with the server's settings and explains a failure.

use clap::Args;
use redrive_core::notification::preferences::check_email;
use redrive_engine::clock::Clock;

use super::{CliError, DatabaseArgs, block_on};
use crate::{config::Profile, mail};

#[derive(Args)]
pub(super) struct TestEmailArgs {
    /// Recipient of the test email.
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
pub(super) fn run(args: &TestEmailArgs) -> Result<(), CliError> {
    check_email("--to", &args.to).map_err(|invalid| CliError::message(invalid.to_string()))?;
    let config = args.database.load(Profile::Serve)?;
    let from = block_on(async {
        mail::send_test(&config.smtp, &args.to, &Clock::system()).await.map_err(CliError::message)
    })?;
    println!("The SMTP server accepted a test email from {from} to {}.", args.to);
    if config.server.public_base().is_none() {
        println!("Emails have no links: set server.public_url to the URL of this installation.");
    }
    Ok(())
}
