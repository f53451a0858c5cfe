//! Tenants' event types in memory: what may be published, and what payloads have to look like.
//!
//! A catalogue is as old as the webhooks it is kept with: a publish that was checked by an older one is refused by
//! the store, and checked again. A schema is compiled when it is first needed, once on each node.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use redrive_core::{TenantId, event::Event, event::schema::Schema};
use redrive_store::{Store, StoreError, VersionedType};

use crate::{
    Inner,
    checking::{BatchProgress, COMPILE_WORK},
    publish::PublishError,
};

/// Event types read at one go.
const PAGE: usize = 64;

/// One tenant's event types at one version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) version: i64,
    by_name: HashMap<Box<str>, Arc<Rule>>,
}

/// What is said about one event type.
#[derive(Debug)]
pub(crate) struct Rule {
    archived: bool,
    schema: Option<Box<str>>,
    compiled: OnceLock<Option<Schema>>,
}

/// Where an event's type stands.
#[derive(Clone, Debug)]
pub(crate) enum Standing {
    /// Nothing is said about it, and nothing has to be.
    Free,
    /// This is.
    Ruled(Arc<Rule>),
    /// It has to be registered, and is not.
    Unregistered,
}

impl Catalogue {
    pub(crate) fn standing(&self, event_type: &str, strict: bool) -> Standing {
        match self.by_name.get(event_type) {
            Some(rule) => Standing::Ruled(rule.clone()),
            None if strict => Standing::Unregistered,
            None => Standing::Free,
        }
    }

    /// What it has become by `version`. What is read may be newer; then the version is not the tenant's any more, and
    /// this is done once more.
    pub(crate) async fn refreshed(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        version: i64,
    ) -> Result<Self, StoreError> {
        let mut catalogue = Self { version, by_name: self.by_name.clone() };
        let mut since = self.version;
        loop {
            let changed = store.event_types_since(tenant.clone(), since, PAGE).await?;
            let more = changed.len() == PAGE;
            since = changed.last().map_or(since, |last| last.revision);
            for VersionedType { event_type, .. } in changed {
                let rule = Rule {
                    archived: event_type.archived,
                    schema: event_type.schema.map(String::into_boxed_str),
                    compiled: OnceLock::new(),
                };
                catalogue.by_name.insert(event_type.name.into_boxed_str(), Arc::new(rule));
            }
            if !more {
                break;
            }
        }
        let names: HashSet<_> = store.event_type_names(tenant.clone()).await?.into_iter().collect();
        catalogue.by_name.retain(|name, _| names.contains(&**name));
        Ok(catalogue)
    }
}

impl Rule {
    fn schema(&self) -> Option<&Schema> {
        let text = self.schema.as_deref()?;
        let compile = || match Schema::parse(text) {
            Ok(schema) => Some(schema),
            // It was checked when it was saved; rules that changed since must not stop events.
            Err(invalid) => {
                tracing::error!(%invalid, "a stored schema cannot be used; payloads are not checked by it");
                None
            }
        };
        self.compiled.get_or_init(compile).as_ref()
    }

    fn check(&self, data: &[u8]) -> Result<(), PublishError> {
        let Some(schema) = self.schema() else { return Ok(()) };
        schema.check(data).map_err(|misfit| PublishError::Misfit(misfit.of("data")))
    }
}

impl Inner {
    /// Refuses an event that the catalogue does not allow.
    pub(crate) async fn check_standing(
        &self,
        event: &Event,
        standing: &Standing,
        batch: Option<&BatchProgress>,
    ) -> Result<(), PublishError> {
        let rule = match standing {
            Standing::Free => return Ok(()),
            Standing::Unregistered => return Err(PublishError::Unregistered(event.event_type.clone())),
            Standing::Ruled(rule) if rule.archived => {
                return Err(PublishError::Archived(event.event_type.clone()));
            }
            Standing::Ruled(rule) => rule,
        };
        if rule.schema.is_none() {
            return Ok(());
        }
        if rule.compiled.get().is_none() {
            let compiled = rule.clone();
            self.run_work(&event.tenant, COMPILE_WORK, batch, move || compiled.schema().is_some()).await?;
        }
        let Some(schema) = rule.schema() else { return Ok(()) };
        let (rule, data) = (rule.clone(), event.data.clone());
        let work = schema.work(&data);
        self.run_work(&event.tenant, work, batch, move || rule.check(&data)).await?
    }
}
