//! Tenants' event types in memory: which types may be published, and the schemas of their payloads.
//!
//! A catalogue has the version of the webhooks it is cached with: the store refuses a publish that was checked
//! against an older version, and it is checked again. A schema is compiled on first use, once per node.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use redrive_core::{
    TenantId,
    event::schema::{Schema, SchemaViolation},
};
use redrive_store::{EventTypeChanges, StoreError, VersionedType};

/// Number of event types read per query.
const PAGE_SIZE: usize = 64;

/// One tenant's event types at one version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) version: i64,
    by_name: HashMap<Box<str>, Arc<TypeRule>>,
}

/// Rules of one event type.
#[derive(Debug)]
pub(crate) struct TypeRule {
    archived: bool,
    schema: Option<Box<str>>,
    compiled: OnceLock<Option<Schema>>,
}

/// Status of an event's type in the catalogue.
#[derive(Clone, Debug)]
pub(crate) enum TypeStatus {
    /// It is not registered and does not need to be.
    Unrestricted,
    /// It is registered with these rules.
    Registered(Arc<TypeRule>),
    /// It must be registered and is not.
    Unregistered,
}

impl Catalogue {
    pub(crate) fn status_of(&self, event_type: &str, strict: bool) -> TypeStatus {
        match self.by_name.get(event_type) {
            Some(rule) => TypeStatus::Registered(rule.clone()),
            None if strict => TypeStatus::Unregistered,
            None => TypeStatus::Unrestricted,
        }
    }

    /// Returns the catalogue updated to `version`. Rows that are read may be newer; then `version` is no longer the
    /// tenant's current one, and the caller refreshes again.
    pub(crate) async fn refresh(
        &self,
        store: &dyn EventTypeChanges,
        tenant_id: &TenantId,
        version: i64,
    ) -> Result<Self, StoreError> {
        let mut catalogue = Self { version, by_name: self.by_name.clone() };
        let mut since = self.version;
        loop {
            let changed = store.event_types_since(tenant_id.clone(), since, PAGE_SIZE).await?;
            let more = changed.len() == PAGE_SIZE;
            since = changed.last().map_or(since, |last| last.revision);
            for VersionedType { event_type, .. } in changed {
                let rule = TypeRule {
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
        let names: HashSet<_> = store.event_type_names(tenant_id.clone()).await?.into_iter().collect();
        catalogue.by_name.retain(|name, _| names.contains(&**name));
        Ok(catalogue)
    }
}

impl TypeRule {
    /// Returns whether events of this type are refused because it is archived.
    pub(crate) fn is_archived(&self) -> bool {
        self.archived
    }

    /// Returns whether payloads are checked against a schema.
    pub(crate) fn has_schema(&self) -> bool {
        self.schema.is_some()
    }

    /// Returns whether the schema is compiled; otherwise the next check compiles it, which is expensive.
    pub(crate) fn is_compiled(&self) -> bool {
        self.compiled.get().is_some()
    }

    /// Returns the compiled schema; `None` if there is none, or it is unusable.
    pub(crate) fn schema(&self) -> Option<&Schema> {
        let text = self.schema.as_deref()?;
        let compile = || match Schema::parse(text) {
            Ok(schema) => Some(schema),
            // The schema was validated when it was saved; validation rules that became stricter must not block events.
            Err(invalid) => {
                tracing::error!(%invalid, "stored schema is unusable; its payloads are not validated");
                None
            }
        };
        self.compiled.get_or_init(compile).as_ref()
    }

    /// Checks a payload against the schema.
    pub(crate) fn check(&self, data: &[u8]) -> Result<(), SchemaViolation> {
        self.schema().map_or(Ok(()), |schema| schema.check(data))
    }
}
