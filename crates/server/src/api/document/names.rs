//! Names of schemas in the document. They become the names of classes in generated clients, so they are those of the
//! objects: `Webhook`, not `WebhookView`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::walk::{
    add_references, each_operation_schema, named_schemas, reference_to, rename_references, with_referenced,
};

/// Names that differ from the Rust type by more than the suffix `View`.
const NAMES: [(&str, &str); 27] = [
    ("Action", "CircuitAction"),
    ("AgeView", "DeadLetterAges"),
    ("AuditView", "AuditEntry"),
    ("BatchFilter", "OperationFilter"),
    ("BatchFilterInput", "OperationFilterInput"),
    ("BatchInput", "EventBatchCreate"),
    ("BatchItem", "EventBatchItem"),
    ("BatchRate", "OperationRate"),
    ("BatchRateInput", "OperationRateInput"),
    ("BatchView", "EventBatchResult"),
    ("Counts", "AttemptCounts"),
    ("CreatedKeyView", "CreatedApiKey"),
    ("EntriesView", "DeadLetterRates"),
    ("EventInput", "EventCreate"),
    ("HealthView", "WebhookHealth"),
    ("InputState", "RequestedWebhookState"),
    ("KeyCreate", "ApiKeyCreate"),
    ("KeyView", "ApiKey"),
    ("PreferencesChange", "PreferencesUpdate"),
    ("PublishedView", "PublishedEvent"),
    ("Scheme", "SignatureScheme"),
    ("SessionCreate", "PortalSessionCreate"),
    ("SessionView", "PortalSession"),
    ("StatsView", "DeadLetterStats"),
    ("TenantChange", "TenantUpdate"),
    ("TenantPreferences", "TenantPreferencesCreate"),
    ("Level", "FindingLevel"),
];

/// Beginning of the names that utoipa gives to pages: `Page_WebhookView`.
const PAGE: &str = "Page_";

/// Refers to the items of pages by their name. utoipa repeats the schema of the item in each page.
pub(super) fn refer_to_items(document: &mut Value) {
    let Some(schemas) = named_schemas(document) else { return };
    let names: Vec<_> =
        schemas.keys().filter_map(|name| name.strip_prefix(PAGE)).map(str::to_owned).collect();
    for name in names.iter().filter(|name| schemas.contains_key(*name)).cloned().collect::<Vec<_>>() {
        let items = schemas.get_mut(&format!("{PAGE}{name}"));
        if let Some(items) = items.and_then(|page| page.pointer_mut("/properties/data/items")) {
            *items = Value::Object(Map::from_iter([("$ref".to_owned(), reference_to(&name))]));
        }
    }
}

/// Renames the schemas, and removes those that nothing refers to.
pub(super) fn rename(document: &mut Value) {
    let Some(schemas) = named_schemas(document).map(std::mem::take) else { return };
    let names: BTreeMap<_, _> = schemas.keys().map(|name| (name.clone(), public_name(name))).collect();
    let mut used = BTreeSet::new();
    each_operation_schema(document, &mut |_, schema| {
        rename_references(schema, &names);
        add_references(schema, &mut used);
    });
    let rename_one = |(name, mut schema): (String, Value)| {
        rename_references(&mut schema, &names);
        (names.get(&name).cloned().unwrap_or(name), schema)
    };
    let mut renamed: Map<_, _> = schemas.into_iter().map(rename_one).collect();
    let used = with_referenced(used, &renamed);
    renamed.retain(|name, _| used.contains(name));
    if let Some(schemas) = named_schemas(document) {
        *schemas = renamed;
    }
}

fn public_name(name: &str) -> String {
    if let Some(item) = name.strip_prefix(PAGE) {
        return format!("{}Page", public_name(item));
    }
    match NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, public)) => (*public).to_owned(),
        None => name.strip_suffix("View").unwrap_or(name).to_owned(),
    }
}

/// Returns the names that two schemas would share after renaming.
#[cfg(test)]
pub(super) fn collisions<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.map(|name| public_name(name)).filter(|name| !seen.insert(name.clone())).collect()
}

/// Returns the entries of the table that name no schema.
#[cfg(test)]
pub(super) fn unused(schemas: &BTreeSet<String>) -> Vec<&'static str> {
    NAMES.iter().map(|(name, _)| *name).filter(|name| !schemas.contains(*name)).collect()
}
