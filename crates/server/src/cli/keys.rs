//! `redrive keys`: manages API keys in the store, or through the server that has the store open.

use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use redrive_core::{KeyId, TenantId};
use redrive_store::{ApiKey, OpenError, PageRequest, Store};
use serde_json::{Value, json};

use super::{
    CliError, ServerArgs, block_on, creation,
    remote::{IN_USE, Remote},
    run::DEV_KEY,
};
use crate::{
    app::{KeyCache, NewKey, Scope, audit, keys::KeyCreation},
    config::{Backend, Config, Profile},
    store,
};

#[derive(Subcommand)]
pub(super) enum KeysCommand {
    /// Create a key and print it; it cannot be shown again. Creates the database if there is none.
    Create(CreateArgs),
    /// List keys, without their secrets.
    List(KeyScopeArgs),
    /// Revoke a key by its id, effective immediately.
    Revoke(RevokeArgs),
}

#[derive(Args)]
pub(super) struct KeyScopeArgs {
    /// Tenant that the keys belong to.
    #[arg(long, default_value = TenantId::DEFAULT)]
    tenant: String,
    /// Use admin keys instead of a tenant's.
    #[arg(long, conflicts_with = "tenant")]
    admin: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args)]
pub(super) struct CreateArgs {
    /// Purpose of the key.
    #[arg(long, default_value = "")]
    name: String,
    /// Scopes of the key; all by default.
    #[arg(long = "scope", value_enum, value_delimiter = ',', conflicts_with = "admin")]
    scopes: Vec<ScopeArg>,
    #[command(flatten)]
    which: KeyScopeArgs,
}

#[derive(Args)]
pub(super) struct RevokeArgs {
    /// Id of the key, key_….
    id: KeyId,
    #[command(flatten)]
    which: KeyScopeArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScopeArg {
    Publish,
    Read,
    Manage,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Publish => Self::Publish,
            ScopeArg::Read => Self::Read,
            ScopeArg::Manage => Self::Manage,
        }
    }
}

impl KeyScopeArgs {
    fn tenant(&self) -> Result<Option<TenantId>, CliError> {
        if self.admin {
            return Ok(None);
        }
        TenantId::parse(&self.tenant)
            .map(Some)
            .map_err(|error| CliError::message(format!("--tenant: {}", error.message)))
    }

    /// Returns the API path of these keys.
    fn path(&self) -> String {
        if self.admin { "/v1/admin-keys".into() } else { format!("/v1/tenants/{}/api-keys", self.tenant) }
    }
}

/// Backend through which keys are changed.
enum KeyBackend {
    /// The store, changed directly: no server has exclusive access to it.
    Store(Arc<dyn Store>, KeyCache),
    /// The server that has exclusive access to the store.
    Server(Remote),
}

/// Opens an existing store without migrating its schema.
async fn open_existing(args: &ServerArgs) -> Result<KeyBackend, CliError> {
    let config = args.load(Profile::Serve)?;
    let backend = creation::require_existing(config.database.backend()?)?;
    let opened = store::open(&backend, None).await;
    open_or_use_server(&config, &backend, opened).await
}

/// Uses the server that has the database open if the store cannot be opened for this reason.
async fn open_or_use_server(
    config: &Config,
    backend: &Backend,
    opened: Result<Arc<dyn Store>, OpenError>,
) -> Result<KeyBackend, CliError> {
    match opened {
        Ok(store) => {
            let keys = KeyCache::load(&*store, None).await?;
            Ok(KeyBackend::Store(store, keys))
        }
        Err(OpenError::InUse { .. }) => Ok(KeyBackend::Server(remote(config, backend)?)),
        Err(error) => Err(error.into()),
    }
}

fn remote(config: &Config, backend: &Backend) -> Result<Remote, CliError> {
    Ok(Remote::new(config, admin_key(config, backend)?, IN_USE))
}

/// Returns the admin key of the server that has the database open.
pub(super) fn admin_key(config: &Config, backend: &Backend) -> Result<String, CliError> {
    let configured = config.auth.admin_key.as_ref().map(|key| key.reveal().to_owned());
    let stored =
        || std::fs::read_to_string(backend.sibling_path(DEV_KEY)).ok().map(|key| key.trim().to_owned());
    configured.or_else(stored).ok_or_else(|| {
        CliError::message(
            "a server has the database open; set REDRIVE_ADMIN_KEY to its admin key to use its API",
        )
    })
}

pub(super) fn run(command: KeysCommand) -> Result<(), CliError> {
    block_on(async {
        match command {
            KeysCommand::Create(args) => create(args).await,
            KeysCommand::List(args) => list(args).await,
            KeysCommand::Revoke(args) => revoke(args).await,
        }
    })
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
async fn create(args: CreateArgs) -> Result<(), CliError> {
    let scopes: Vec<Scope> = match args.scopes.is_empty() {
        true => Scope::ALL.to_vec(),
        false => args.scopes.into_iter().map(Into::into).collect(),
    };
    let tenant_id = args.which.tenant()?;
    let config = args.which.server.load(Profile::Serve)?;
    let backend = config.database.backend()?;
    let (id, key) = match open_or_use_server(&config, &backend, creation::open(&backend).await).await? {
        KeyBackend::Store(store, keys) => {
            let now = store::now(&*store).await?;
            let entry =
                audit::begin_cli_entry(&*store, now, "api_key.create", tenant_id.clone(), None).await?;
            let new = NewKey { tenant_id, name: args.name, scopes, ..NewKey::default() };
            let created = match keys.create(&*store, new, now, None).await? {
                KeyCreation::Created(key, secret) => Some((key, secret)),
                KeyCreation::NoTenant | KeyCreation::KeyUsed => None,
            };
            let id = created.as_ref().map(|(key, _)| key.id.to_string());
            audit::finish_cli_entry(&*store, entry, id, created.is_some()).await?;
            let missing = || CliError::message(format!("no such tenant: {}", args.which.tenant));
            let (key, secret) = created.ok_or_else(missing)?;
            (key.id.to_string(), secret)
        }
        KeyBackend::Server(remote) => {
            let mut body = json!({"name": args.name});
            if tenant_id.is_some() {
                body["scopes"] = json!(scopes);
            }
            let created = remote.call("POST", &args.which.path(), Some(&body)).await?;
            let text = |name: &str| created[name].as_str().unwrap_or_default().to_owned();
            (text("id"), text("key"))
        }
    };
    println!("{key}");
    eprintln!("Created the key {id}. It is not shown again.");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
async fn list(args: KeyScopeArgs) -> Result<(), CliError> {
    let mut lines: Vec<[String; 4]> = Vec::new();
    match open_existing(&args.server).await? {
        KeyBackend::Store(store, _) => {
            let page = PageRequest { after: None, offset: 0, limit: 1_000 };
            for key in store.list_keys(args.tenant()?, page).await? {
                lines.push(format_key(&key));
            }
        }
        KeyBackend::Server(remote) => {
            let page = remote.call("GET", &format!("{}?limit=500", args.path()), None).await?;
            for key in page["data"].as_array().into_iter().flatten() {
                lines.push(format_json_key(key));
            }
        }
    }
    if lines.is_empty() {
        let admin = if args.admin { " --admin" } else { "" };
        println!("There are no keys. Create one with: redrive keys create{admin}");
    }
    for [id, state, scopes, name] in lines {
        println!("{id}  {state:<7}  {scopes:<19}  {name}");
    }
    Ok(())
}

fn format_key(key: &ApiKey) -> [String; 4] {
    let state = if key.revoked_at.is_some() { "revoked" } else { "active" };
    let scopes: Vec<_> = Scope::from_bits(key.scopes).into_iter().map(Scope::name).collect();
    [key.id.to_string(), state.into(), scopes.join(","), key.name.clone()]
}

fn format_json_key(key: &Value) -> [String; 4] {
    let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
    let state = if key["revoked_at"].is_null() { "active" } else { "revoked" };
    let scopes: Vec<_> = key["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    [text("id"), state.into(), scopes.join(","), text("name")]
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
async fn revoke(args: RevokeArgs) -> Result<(), CliError> {
    match open_existing(&args.which.server).await? {
        KeyBackend::Store(store, keys) => {
            let now = store::now(&*store).await?;
            let (tenant_id, object) = (args.which.tenant()?, Some(args.id.to_string()));
            let entry =
                audit::begin_cli_entry(&*store, now, "api_key.revoke", tenant_id.clone(), object).await?;
            let revoked = keys.revoke(&*store, tenant_id, args.id, now).await?;
            audit::finish_cli_entry(&*store, entry, None, revoked).await?;
            if !revoked {
                return Err(CliError::message(format!(
                    "no active key {}; list the keys with: redrive keys list",
                    args.id
                )));
            }
        }
        KeyBackend::Server(remote) => {
            remote.call("DELETE", &format!("{}/{}", args.which.path(), args.id), None).await?;
        }
    }
    println!("Revoked {}.", args.id);
    Ok(())
}
