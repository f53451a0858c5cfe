//! `redrive keys`: on the store itself, or through the server that has it open.

use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use redrive_core::{KeyId, TenantId};
use redrive_store::{ApiKey, OpenError, PageRequest, Store};
use serde_json::{Value, json};

use super::{
    CliError, ServerArgs, block_on,
    remote::{IN_USE, Remote},
    run::DEV_KEY,
};
use crate::{
    app::{Keys, NewKey, Scope, audit},
    config::{Backend, Config, Profile},
    store,
};

#[derive(Subcommand)]
pub(super) enum KeysCommand {
    /// Make a key and print it, this once.
    Create(CreateArgs),
    /// List keys, without the keys themselves.
    List(WhichArgs),
    /// Revoke a key by its id; it stops working at once.
    Revoke(RevokeArgs),
}

#[derive(Args)]
pub(super) struct WhichArgs {
    /// The tenant.
    #[arg(long, default_value = TenantId::DEFAULT)]
    tenant: String,
    /// Admin keys instead of a tenant's.
    #[arg(long, conflicts_with = "tenant")]
    admin: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args)]
pub(super) struct CreateArgs {
    /// What the key is for.
    #[arg(long, default_value = "")]
    name: String,
    /// What it may be used for; all of them if left out.
    #[arg(long = "scope", value_enum, value_delimiter = ',', conflicts_with = "admin")]
    scopes: Vec<ScopeArg>,
    #[command(flatten)]
    which: WhichArgs,
}

#[derive(Args)]
pub(super) struct RevokeArgs {
    /// The key's id, key_….
    id: KeyId,
    #[command(flatten)]
    which: WhichArgs,
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

impl WhichArgs {
    fn tenant(&self) -> Result<Option<TenantId>, CliError> {
        if self.admin {
            return Ok(None);
        }
        TenantId::parse(&self.tenant)
            .map(Some)
            .map_err(|error| CliError::said(format!("--tenant: {}", error.message)))
    }

    /// The path of these keys in the API.
    fn path(&self) -> String {
        if self.admin { "/v1/admin-keys".into() } else { format!("/v1/tenants/{}/api-keys", self.tenant) }
    }
}

/// Where keys are changed.
enum Place {
    /// Nobody has the store to itself: it is changed directly.
    Store(Arc<dyn Store>, Keys),
    /// A server has: it is asked to.
    Server(Remote),
}

/// Opens the store of a server that has run before, and leaves its schema alone.
async fn open_existing(args: &ServerArgs) -> Result<Place, CliError> {
    let config = args.load(Profile::Serve)?;
    let mut backend = config.database.backend()?;
    match &mut backend {
        Backend::Sqlite(path) if !path.exists() => {
            let path = path.display();
            return Err(CliError::said(format!(
                "there is no database at {path}; name it with --database-url sqlite:PATH"
            )));
        }
        Backend::Sqlite(_) => {}
        Backend::Postgres(options) => options.migrate = false,
    }
    open(&config, &backend).await
}

async fn open(config: &Config, backend: &Backend) -> Result<Place, CliError> {
    match store::open(backend, None).await {
        Ok(store) => {
            let keys = Keys::load(&*store, None).await?;
            Ok(Place::Store(store, keys))
        }
        Err(OpenError::InUse { .. }) => Ok(Place::Server(remote(config, backend)?)),
        Err(error) => Err(error.into()),
    }
}

fn remote(config: &Config, backend: &Backend) -> Result<Remote, CliError> {
    Ok(Remote::of(config, admin_key(config, backend)?, IN_USE))
}

/// The admin key of the server that has the database open.
pub(super) fn admin_key(config: &Config, backend: &Backend) -> Result<String, CliError> {
    let configured = config.auth.admin_key.as_ref().map(|key| key.reveal().to_owned());
    let kept = || std::fs::read_to_string(backend.beside(DEV_KEY)).ok().map(|key| key.trim().to_owned());
    configured.or_else(kept).ok_or_else(|| {
        CliError::said(
            "a server has the database open; set REDRIVE_ADMIN_KEY to its admin key to go through it",
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

#[expect(clippy::print_stdout, reason = "the answer of a command goes to standard output")]
async fn create(args: CreateArgs) -> Result<(), CliError> {
    let scopes: Vec<Scope> = match args.scopes.is_empty() {
        true => Scope::ALL.to_vec(),
        false => args.scopes.into_iter().map(Into::into).collect(),
    };
    let tenant = args.which.tenant()?;
    let config = args.which.server.load(Profile::Serve)?;
    let backend = config.database.backend()?;
    let (id, key) = match open(&config, &backend).await? {
        Place::Store(store, keys) => {
            let now = store::now(&*store).await?;
            let entry = audit::begin_by_hand(&*store, now, "api_key.create", tenant.clone(), None).await?;
            let new = NewKey { tenant, name: args.name, scopes, ..NewKey::default() };
            let made = keys.create(&*store, new, now).await?;
            let id = made.as_ref().map(|(key, _)| key.id.to_string());
            audit::finish_by_hand(&*store, entry, id, made.is_some()).await?;
            let missing = || CliError::said(format!("there is no tenant {}", args.which.tenant));
            let (key, secret) = made.ok_or_else(missing)?;
            (key.id.to_string(), secret)
        }
        Place::Server(remote) => {
            let mut body = json!({"name": args.name});
            if tenant.is_some() {
                body["scopes"] = json!(scopes);
            }
            let made = remote.call("POST", &args.which.path(), Some(&body)).await?;
            let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
            (text("id"), text("key"))
        }
    };
    println!("{key}");
    eprintln!("This is the key {id}. It is not shown again.");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the answer of a command goes to standard output")]
async fn list(args: WhichArgs) -> Result<(), CliError> {
    let mut lines: Vec<[String; 4]> = Vec::new();
    match open_existing(&args.server).await? {
        Place::Store(store, _) => {
            let page = PageRequest { after: None, offset: 0, limit: 1_000 };
            for key in store.list_keys(args.tenant()?, page).await? {
                lines.push(line(&key));
            }
        }
        Place::Server(remote) => {
            let page = remote.call("GET", &format!("{}?limit=500", args.path()), None).await?;
            for key in page["data"].as_array().into_iter().flatten() {
                lines.push(line_of_json(key));
            }
        }
    }
    if lines.is_empty() {
        let admin = if args.admin { " --admin" } else { "" };
        println!("There are no keys. Make one with: redrive keys create{admin}");
    }
    for [id, state, scopes, name] in lines {
        println!("{id}  {state:<7}  {scopes:<19}  {name}");
    }
    Ok(())
}

fn line(key: &ApiKey) -> [String; 4] {
    let state = if key.revoked_at.is_some() { "revoked" } else { "live" };
    let scopes: Vec<_> = Scope::from_bits(key.scopes).into_iter().map(Scope::name).collect();
    [key.id.to_string(), state.into(), scopes.join(","), key.name.clone()]
}

fn line_of_json(key: &Value) -> [String; 4] {
    let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
    let state = if key["revoked_at"].is_null() { "live" } else { "revoked" };
    let scopes: Vec<_> = key["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    [text("id"), state.into(), scopes.join(","), text("name")]
}

#[expect(clippy::print_stdout, reason = "the answer of a command goes to standard output")]
async fn revoke(args: RevokeArgs) -> Result<(), CliError> {
    match open_existing(&args.which.server).await? {
        Place::Store(store, keys) => {
            let now = store::now(&*store).await?;
            let (tenant, object) = (args.which.tenant()?, Some(args.id.to_string()));
            let entry = audit::begin_by_hand(&*store, now, "api_key.revoke", tenant.clone(), object).await?;
            let revoked = keys.revoke(&*store, tenant, args.id, now).await?;
            audit::finish_by_hand(&*store, entry, None, revoked).await?;
            if !revoked {
                return Err(CliError::said(format!(
                    "there is no live key {}; see: redrive keys list",
                    args.id
                )));
            }
        }
        Place::Server(remote) => {
            remote.call("DELETE", &format!("{}/{}", args.which.path(), args.id), None).await?;
        }
    }
    println!("Revoked {}.", args.id);
    Ok(())
}
