//! Paging: opaque cursors and page size limits.

use redrive_core::{
    AuditId, DeliveryId, EventId, FieldError, KeyId, NotificationId, OperationId, TenantId, WebhookId,
};
use redrive_store::{DeliveryCursor, ListingPage, PageRequest};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::scope::tenant_parameter;
use crate::problem::Problem;

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 500;
const MAX_OFFSET: u32 = 10_000;

/// Paging parameters of a listing.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
    /// Page size: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    pub(crate) limit: Option<u32>,
    /// Number of items to skip, up to 10,000. Prefer a cursor.
    #[param(maximum = 10000)]
    pub(crate) offset: Option<u32>,
    /// Tenant to act for; admin keys only.
    pub(crate) tenant_id: Option<String>,
}

tenant_parameter!(Paging);

/// Page of a listing.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// Items, newest first. A page can have fewer items than `limit`, or none, although more pages follow.
    pub(crate) data: Vec<T>,
    /// Pass this as `cursor` to get the next page; null only on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// Position in a listing after which the next page starts.
pub(crate) trait Cursor: Sized {
    /// Encodes the cursor as text.
    fn write(&self) -> String;
    /// Parses a cursor. Returns `None` if the text is not valid.
    fn read(text: &str) -> Option<Self>;
}

macro_rules! id_cursor {
    ($($id:ty),*) => {$(
        impl Cursor for $id {
            fn write(&self) -> String {
                self.to_string()
            }

            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}
id_cursor!(WebhookId, EventId, DeliveryId, AuditId, KeyId, NotificationId, OperationId);

impl Cursor for TenantId {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        TenantId::parse(text).ok()
    }
}

impl Cursor for String {
    fn write(&self) -> String {
        self.clone()
    }

    fn read(text: &str) -> Option<Self> {
        // Cursor of a listing that is sorted by name.
        redrive_core::event::event_type::validate(text).is_ok().then(|| text.to_owned())
    }
}

impl Cursor for DeliveryCursor {
    fn write(&self) -> String {
        format!("{}.{}", self.event_id, self.delivery_id)
    }

    fn read(text: &str) -> Option<Self> {
        let (event, delivery) = text.split_once('.')?;
        Some(Self { event_id: event.parse().ok()?, delivery_id: delivery.parse().ok()? })
    }
}

impl Paging {
    /// Replaces the default limit; a limit from the request is kept.
    pub(crate) fn or_limit(self, limit: u32) -> Self {
        Self { limit: self.limit.or(Some(limit)), ..self }
    }

    /// Builds the request to the store, with one row more than the limit to detect whether another page follows.
    pub(crate) fn request<C: Cursor>(&self) -> Result<PageRequest<C>, Problem> {
        let after = match &self.cursor {
            None => None,
            Some(text) => Some(C::read(text).ok_or_else(|| {
                FieldError::new(
                    "cursor",
                    "is not a cursor of this listing; use next_cursor of the previous page unchanged",
                )
            })?),
        };
        let limit = self.limit()?;
        let offset = self.offset.unwrap_or(0);
        if offset > MAX_OFFSET {
            return Err(FieldError::new(
                "offset",
                format!("must be at most {MAX_OFFSET}; use cursor instead"),
            )
            .into());
        }
        Ok(PageRequest { after, offset, limit: limit + 1 })
    }

    fn limit(&self) -> Result<u32, Problem> {
        match self.limit.unwrap_or(DEFAULT_LIMIT) {
            limit @ 1..=MAX_LIMIT => Ok(limit),
            _ => Err(FieldError::new("limit", format!("must be from 1 to {MAX_LIMIT}")).into()),
        }
    }

    /// Builds a page from rows that are complete, or end with one row more than the limit.
    pub(crate) fn page<R, C: Cursor, T>(
        &self,
        rows: Vec<R>,
        cursor: impl Fn(&R) -> C,
        view: impl Fn(R) -> T,
    ) -> Page<T> {
        self.page_of(ListingPage { found: rows, stopped: None }, cursor, view)
    }

    /// Builds a page from the result of a listing, which may have stopped early.
    pub(crate) fn page_of<R, C: Cursor, T>(
        &self,
        listed: ListingPage<R, C>,
        cursor: impl Fn(&R) -> C,
        view: impl Fn(R) -> T,
    ) -> Page<T> {
        let mut rows = listed.found;
        let limit = self.limit().unwrap_or(DEFAULT_LIMIT) as usize;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(cursor).or(listed.stopped);
        let next_cursor = next.map(|next| next.write());
        Page { data: rows.into_iter().map(view).collect(), next_cursor }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    /// Returns whether a text, if it parses as a cursor, parses to the same cursor after encoding it again.
    fn is_steady<C: Cursor + PartialEq + Debug>(text: &str) -> bool {
        C::read(text).is_none_or(|cursor| C::read(&cursor.write()) == Some(cursor))
    }

    fn request<C: Cursor>(
        cursor: Option<&str>,
        limit: Option<u32>,
        offset: Option<u32>,
    ) -> Option<PageRequest<C>> {
        let paging = Paging { cursor: cursor.map(str::to_owned), limit, offset, tenant_id: None };
        paging.request().ok()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn arbitrary_text_is_rejected_or_parsed_as_cursor(
            text in prop_oneof![
                "(wh|evt|dlv|key)_[0-9a-fA-F]{32}(\\.(dlv|evt)_[0-9a-f]{32})?", "\\PC{0,80}", any::<String>(),
            ],
        ) {
            prop_assert!(is_steady::<WebhookId>(&text) && is_steady::<EventId>(&text));
            prop_assert!(is_steady::<DeliveryId>(&text) && is_steady::<KeyId>(&text));
            prop_assert!(is_steady::<TenantId>(&text) && is_steady::<DeliveryCursor>(&text));
            // An invalid cursor is rejected; it must not restart the listing from the beginning.
            let request = request::<DeliveryCursor>(Some(&text), None, None);
            prop_assert_eq!(request.map(|request| request.after), DeliveryCursor::read(&text).map(Some));
        }

        #[test]
        fn cursor_round_trips(event: [u8; 16], delivery: [u8; 16]) {
            let (event_id, delivery_id) = (EventId::from_bytes(event), DeliveryId::from_bytes(delivery));
            let cursor = DeliveryCursor { event_id, delivery_id };
            prop_assert_eq!(DeliveryCursor::read(&cursor.write()), Some(cursor));
            prop_assert_eq!(EventId::read(&event_id.write()), Some(event_id));
        }

        #[test]
        fn page_size_never_exceeds_limit(limit in prop_oneof![0..600u32, any::<u32>()], offset: u32, rows in 0..1_200usize) {
            let paging = Paging { limit: Some(limit), ..Paging::default() };
            match request::<EventId>(None, Some(limit), Some(offset)) {
                Some(request) => {
                    prop_assert!((1..=MAX_LIMIT).contains(&limit) && offset <= MAX_OFFSET);
                    let found = rows.min(request.limit as usize);
                    let page = paging.page(vec![(); found], |()| EventId::from_bytes([1; 16]), |()| ());
                    prop_assert!(page.data.len() <= limit as usize);
                    prop_assert_eq!(page.next_cursor.is_some(), rows > limit as usize);
                }
                None => prop_assert!(!(1..=MAX_LIMIT).contains(&limit) || offset > MAX_OFFSET),
            }
        }
    }
}
