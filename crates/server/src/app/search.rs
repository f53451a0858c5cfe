//! Search: finds objects by their ids, by texts that identify them, and webhooks and tenants by parts of their names.

use std::collections::HashSet;

use redrive_core::{TenantId, WebhookId, event::event_type, search::SearchText};
use redrive_store::{EventFilter, PageRequest, StoredEvent, WebhookLabel};

use super::{
    App, AppError, Caller, TenantSelection, TenantView,
    across_tenants::{AllTenants, ObjectId},
};

/// Maximum number of hits of one kind.
const MAX_HITS: usize = 8;
/// Shortest text that is searched for inside other texts.
const MIN_PART_CHARS: usize = 2;
/// Number of webhooks or tenants that are read at a time, and of such pages.
const PAGE_SIZE: u32 = 500;
const MAX_PAGES: usize = 4;

/// Kind of an object that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitKind {
    /// Tenant.
    Tenant,
    /// Webhook.
    Webhook,
    /// Event type, registered or not.
    EventType,
    /// Event.
    Event,
    /// Delivery.
    Delivery,
    /// Attempt.
    Attempt,
}

impl HitKind {
    /// Returns the name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Webhook => "webhook",
            Self::EventType => "event_type",
            Self::Event => "event",
            Self::Delivery => "delivery",
            Self::Attempt => "attempt",
        }
    }
}

/// Object that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchHit {
    /// Its kind.
    pub kind: HitKind,
    /// Its id or name.
    pub id: String,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// Text that describes it.
    pub title: String,
    /// Field that matched.
    pub matched: &'static str,
    /// Path of its page in the dashboard.
    pub path: String,
}

/// Result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    /// Objects that were found, the most specific first.
    pub hits: Vec<SearchHit>,
    /// Whether everything was searched; false if there are more webhooks or tenants than a search reads, or more hits.
    pub is_complete: bool,
    /// Whether the caller may view other tenants whose event types and events were not searched.
    pub skipped_tenants: bool,
}

impl SearchResult {
    /// Adds those of these webhooks whose uid, URL or description contains the text, which is in lower case. Returns `false`
    /// once there are more than a result has.
    fn add_webhooks(&mut self, webhooks: Vec<(TenantId, WebhookLabel)>, part: &str) -> bool {
        let is_webhook = |hit: &&SearchHit| hit.kind == HitKind::Webhook;
        let known: HashSet<_> = self.hits.iter().filter(is_webhook).map(|hit| hit.id.clone()).collect();
        let mut count = known.len();
        for (tenant_id, webhook) in webhooks {
            let described = webhook.description.as_deref().unwrap_or_default();
            let uid = webhook.uid.as_deref().unwrap_or_default();
            let matched = match () {
                () if uid.to_lowercase().contains(part) => "uid",
                () if webhook.url.to_lowercase().contains(part) => "url",
                () if described.to_lowercase().contains(part) => "description",
                () => continue,
            };
            let id = webhook.id.to_string();
            if known.contains(&id) {
                continue;
            }
            if count == MAX_HITS {
                self.is_complete = false;
                return false;
            }
            count += 1;
            self.hits.push(SearchHit {
                kind: HitKind::Webhook,
                path: page_path(&tenant_id, &format!("webhooks/{id}")),
                id,
                tenant_id,
                title: webhook.url,
                matched,
            });
        }
        true
    }
}

/// Returns `None` instead of an error for an object that does not exist.
fn existing<T>(result: Result<T, AppError>) -> Result<Option<T>, AppError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(AppError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the path of a page of a tenant.
fn page_path(tenant_id: &TenantId, page: &str) -> String {
    format!("/dashboard/t/{tenant_id}/{page}")
}

fn event_hit(stored: &StoredEvent, matched: &'static str) -> SearchHit {
    let event = &stored.event;
    let title = match (matched, &event.subject, &event.idempotency_key) {
        ("subject", Some(text), _) | ("idempotency_key", _, Some(text)) => {
            format!("{} · {text}", event.event_type)
        }
        _ => event.event_type.to_string(),
    };
    SearchHit {
        kind: HitKind::Event,
        id: event.id.to_string(),
        tenant_id: event.tenant_id.clone(),
        title,
        matched,
        path: page_path(&event.tenant_id, &format!("events/{}", event.id)),
    }
}

impl App {
    /// Finds what a text can mean. Ids, tenants and webhooks are searched in every tenant that the caller may view; event types
    /// and events in the given one only, since there is no index over all tenants.
    pub async fn search(
        &self,
        caller: &Caller,
        tenant: impl Into<TenantView>,
        text: &SearchText,
    ) -> Result<SearchResult, AppError> {
        let view = tenant.into();
        let all = caller.require_all_tenants().ok();
        let mut result = SearchResult { is_complete: true, ..SearchResult::default() };
        if text.is_id() {
            result.hits = self.find_by_id(&view, text).await?;
            if let (true, Some(all)) = (result.hits.is_empty(), all) {
                result.hits = self.find_by_id_in_any_tenant(caller, all, text).await?;
            }
            if !result.hits.is_empty() {
                return Ok(result);
            }
        }
        if all.is_some() {
            let two = PageRequest { after: None, offset: 0, limit: 2 };
            result.skipped_tenants = self.list_tenants(None, two).await?.len() > 1;
            self.find_tenants(&text.text, &mut result).await?;
        }
        // Those of the given tenant come first.
        self.find_webhooks((&view).into(), &text.text, &mut result).await?;
        if let (Some(all), true) = (all, result.skipped_tenants) {
            self.find_webhooks(all.into(), &text.text, &mut result).await?;
        }
        self.find_event_types(&view, &text.text, &mut result).await?;
        self.find_events(&view, &text.text, &mut result).await?;
        Ok(result)
    }

    /// Finds an object by id in any tenant.
    async fn find_by_id_in_any_tenant(
        &self,
        caller: &Caller,
        all: AllTenants,
        text: &SearchText,
    ) -> Result<Vec<SearchHit>, AppError> {
        let objects = [
            text.delivery_id.map(ObjectId::Delivery),
            text.event_id.map(ObjectId::Event),
            text.webhook_id.map(ObjectId::Webhook),
            text.attempt_id.map(ObjectId::Attempt),
        ];
        for object in objects.into_iter().flatten() {
            if let Some(tenant_id) = self.tenant_of(all, object).await? {
                return self.find_by_id(&caller.view_of(tenant_id), text).await;
            }
        }
        Ok(Vec::new())
    }

    /// Finds objects of a tenant by id.
    async fn find_by_id(&self, view: &TenantView, text: &SearchText) -> Result<Vec<SearchHit>, AppError> {
        let tenant_id = &view.id;
        let hit = |kind, id: String, title: String, path: String| SearchHit {
            kind,
            id,
            tenant_id: tenant_id.clone(),
            title,
            matched: "id",
            path: page_path(tenant_id, &path),
        };
        let mut hits = Vec::new();
        if let Some(id) = text.delivery_id
            && let Some(found) = existing(self.delivery(view, id).await)?
        {
            let path = format!("deliveries/{id}");
            hits.push(hit(HitKind::Delivery, id.to_string(), found.delivery.event_type, path));
        }
        if let Some(id) = text.event_id
            && let Some(found) = existing(self.event(view, id).await)?
        {
            hits.push(event_hit(&found, "id"));
        }
        if let Some(id) = text.webhook_id
            && let Some(webhook) = existing(self.webhook(view, id).await)?
        {
            hits.push(hit(HitKind::Webhook, id.to_string(), webhook.spec.url, format!("webhooks/{id}")));
        }
        if let Some(id) = text.attempt_id
            && let Some((stored, event)) = existing(self.attempt(view, id).await)?
        {
            let number = stored.attempt.number;
            let title = format!("attempt {number} of {}", event.event_type);
            let path = format!("deliveries/{}#attempt-{number}", stored.delivery_id);
            hits.push(hit(HitKind::Attempt, id.to_string(), title, path));
        }
        Ok(hits)
    }

    /// Returns what names the webhooks of a tenant, or of all.
    async fn webhook_labels(
        &self,
        tenants: &TenantSelection,
        page: PageRequest<WebhookId>,
    ) -> Result<Vec<(TenantId, WebhookLabel)>, AppError> {
        Ok(match tenants {
            TenantSelection::One(view) => {
                let labels =
                    self.store().list_webhook_labels(view.id.clone(), view.visibility(), page).await?;
                labels.into_iter().map(|label| (view.id.clone(), label)).collect()
            }
            TenantSelection::All(all) => {
                let webhooks = self.read_all_webhooks(*all, page).await?.into_iter();
                webhooks.map(|webhook| (webhook.tenant_id.clone(), WebhookLabel::from(webhook))).collect()
            }
        })
    }

    /// Finds webhooks whose uid, URL or description contains the text, besides those that were found before.
    async fn find_webhooks(
        &self,
        tenants: TenantSelection,
        text: &str,
        result: &mut SearchResult,
    ) -> Result<(), AppError> {
        if text.chars().count() < MIN_PART_CHARS {
            return Ok(());
        }
        let part = text.to_lowercase();
        let mut after = None;
        for _ in 0..MAX_PAGES {
            let page = PageRequest { after, offset: 0, limit: PAGE_SIZE };
            let webhooks = self.webhook_labels(&tenants, page).await?;
            after = webhooks.last().map(|(_, webhook)| webhook.id);
            let is_last = webhooks.len() < PAGE_SIZE as usize;
            if !result.add_webhooks(webhooks, &part) || is_last {
                return Ok(());
            }
        }
        result.is_complete = false;
        Ok(())
    }

    /// Finds tenants whose id or name contains the text.
    async fn find_tenants(&self, text: &str, result: &mut SearchResult) -> Result<(), AppError> {
        let hit = |id: &TenantId, name: Option<String>, matched| SearchHit {
            kind: HitKind::Tenant,
            id: id.to_string(),
            tenant_id: id.clone(),
            title: name.unwrap_or_else(|| id.to_string()),
            matched,
            path: format!("/dashboard/t/{id}"),
        };
        let exact = match TenantId::parse(text) {
            Ok(id) => existing(self.tenant(id).await)?,
            Err(_) => None,
        };
        let exact_id = exact.as_ref().map(|tenant| tenant.id.clone());
        result.hits.extend(exact.map(|tenant| hit(&tenant.id, tenant.name, "id")));
        if text.chars().count() < MIN_PART_CHARS {
            return Ok(());
        }
        let part = text.to_lowercase();
        let (mut after, mut count) = (None, 0);
        for _ in 0..MAX_PAGES {
            let page = PageRequest { after: after.clone(), offset: 0, limit: PAGE_SIZE };
            let tenants = self.list_tenants(None, page).await?;
            after = tenants.last().map(|tenant| tenant.id.clone());
            let is_last = tenants.len() < PAGE_SIZE as usize;
            for tenant in tenants.into_iter().filter(|tenant| Some(&tenant.id) != exact_id.as_ref()) {
                let named = tenant.name.as_deref().unwrap_or_default();
                let matched = match () {
                    () if tenant.id.as_str().to_lowercase().contains(&part) => "id",
                    () if named.to_lowercase().contains(&part) => "name",
                    () => continue,
                };
                if count == MAX_HITS {
                    result.is_complete = false;
                    return Ok(());
                }
                count += 1;
                result.hits.push(hit(&tenant.id, tenant.name, matched));
            }
            if is_last {
                return Ok(());
            }
        }
        result.is_complete = false;
        Ok(())
    }

    /// Finds registered event types whose name contains the text, and an event type that is not registered if there is a
    /// recent event of it.
    async fn find_event_types(
        &self,
        view: &TenantView,
        text: &str,
        result: &mut SearchResult,
    ) -> Result<(), AppError> {
        let hit = |name: &str, path: String| SearchHit {
            kind: HitKind::EventType,
            id: name.to_owned(),
            tenant_id: view.id.clone(),
            title: name.to_owned(),
            matched: "name",
            path: page_path(view, &path),
        };
        let names = match text.chars().count() < MIN_PART_CHARS {
            true => Vec::new(),
            false => self.event_type_names(view.id.clone()).await?,
        };
        let part = text.to_lowercase();
        let matching: Vec<_> = names.iter().filter(|name| name.to_lowercase().contains(&part)).collect();
        result.is_complete &= matching.len() <= MAX_HITS;
        let shown = matching.iter().take(MAX_HITS);
        result.hits.extend(shown.map(|name| hit(name, format!("event-types/{name}"))));
        if event_type::validate(text).is_ok() && !names.iter().any(|name| name == text) {
            let filter = EventFilter { event_types: vec![text.to_owned()], ..EventFilter::default() };
            let page = PageRequest { after: None, offset: 0, limit: 1 };
            if !self.list_events(view, filter, page).await?.found.is_empty() {
                let name: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
                result.hits.push(hit(text, format!("events?event_type={name}")));
            }
        }
        Ok(())
    }

    /// Finds events with exactly this subject or idempotency key, newest first.
    async fn find_events(
        &self,
        view: &TenantView,
        text: &str,
        result: &mut SearchResult,
    ) -> Result<(), AppError> {
        let text = text.to_owned();
        for (matched, filter) in [
            ("subject", EventFilter { subject: Some(text.clone()), ..EventFilter::default() }),
            (
                "idempotency_key",
                EventFilter { idempotency_key: Some(text.clone()), ..EventFilter::default() },
            ),
        ] {
            let page = PageRequest { after: None, offset: 0, limit: MAX_HITS as u32 + 1 };
            let events = self.list_events(view, filter, page).await?.found;
            result.is_complete &= events.len() <= MAX_HITS;
            result.hits.extend(events.iter().take(MAX_HITS).map(|stored| event_hit(stored, matched)));
        }
        Ok(())
    }
}
