//! `redrive secrets`: create a master key, and re-encrypt all secrets with a new one.

use clap::Subcommand;
use serde_json::json;

use super::{
    CliError, ServerArgs, block_on, creation,
    keys::admin_key,
    remote::{IN_USE, Remote},
};
use crate::{
    app::{audit, secrets::rewrap_all},
    config::Profile,
    store, vault,
};

#[derive(Subcommand)]
pub(super) enum SecretsCommand {
    /// Print a new master key; secrets encrypted with it cannot be read without it.
    NewKey,
    /// Re-encrypt every secret with the current master key, while servers run; old keys are not needed afterwards.
    RotateMasterKey(ServerArgs),
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
pub(super) fn run(command: SecretsCommand) -> Result<(), CliError> {
    match command {
        SecretsCommand::NewKey => println!("{}", *vault::new_key().reveal()),
        SecretsCommand::RotateMasterKey(args) => {
            let changed = block_on(rotate(&args))?;
            println!(
                "Re-encrypted the secrets of {changed} webhooks. Once every server uses the new master key, remove the old \
                 one from secrets.additional_master_key_files."
            );
        }
    }
    Ok(())
}

async fn rotate(args: &ServerArgs) -> Result<u64, CliError> {
    let config = args.load(Profile::Serve)?;
    let backend = creation::require_existing(config.database.backend()?)?;
    let vault = vault::open(&config, Profile::Serve, &backend)?;
    let store = match store::open(&backend, Some(&vault)).await {
        Ok(store) => store,
        // The server that has the database file open performs the rotation itself.
        Err(redrive_store::OpenError::InUse { .. }) => {
            let remote = Remote::new(&config, admin_key(&config, &backend)?, IN_USE);
            let response = remote.call("POST", "/v1/secrets/rotate-master-key", Some(&json!({}))).await?;
            return Ok(response["rewrapped"].as_u64().unwrap_or_default());
        }
        Err(error) => return Err(error.into()),
    };
    vault::check(&vault, &*store).await?;
    let now = store::now(&*store).await?;
    let entry = audit::begin_cli_entry(&*store, now, "master_key.rotate", None, None).await?;
    let changed = rewrap_all(&*store).await?;
    audit::finish_cli_entry(&*store, entry, None, true).await?;
    Ok(changed as u64)
}
