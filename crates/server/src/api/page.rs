//! Paging: cursors that only we can read, and limits that make sense.

use redrive_core::{
    AuditId, DeliveryId, EventId, Invalid, KeyId, NoticeId, OperationId, TenantId, WebhookId,
};
use redrive_store::{DeliveryCursor, Listed, PageRequest};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 500;
const MAX_OFFSET: u32 = 10_000;

/// Which part of a listing to give.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// The `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
    /// How many to give: 1 to 500, 50 if left out.
    #[param(minimum = 1, maximum = 500)]
    pub(crate) limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    #[param(maximum = 10000)]
    pub(crate) offset: Option<u32>,
    /// The tenant to act for; admin keys only.
    pub(crate) tenant_id: Option<String>,
}

/// A page of a listing.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// What was asked for, newest first. There may be fewer than `limit`, or none, and more to come.
    pub(crate) data: Vec<T>,
    /// Give this as `cursor` to go on; null at the end, and only there.
    pub(crate) next_cursor: Option<String>,
}

/// Something that a listing can go on after.
pub(crate) trait Cursor: Sized {
    /// As text.
    fn write(&self) -> String;
    /// From text.
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
id_cursor!(WebhookId, EventId, DeliveryId, AuditId, KeyId, NoticeId, OperationId);

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
        // A name of something that is listed by name.
        redrive_core::event::event_type::validate(text).is_ok().then(|| text.to_owned())
    }
}

impl Cursor for DeliveryCursor {
    fn write(&self) -> String {
        format!("{}.{}", self.event, self.delivery)
    }

    fn read(text: &str) -> Option<Self> {
        let (event, delivery) = text.split_once('.')?;
        Some(Self { event: event.parse().ok()?, delivery: delivery.parse().ok()? })
    }
}

impl Paging {
    /// The same with another limit, unless one was asked for.
    pub(crate) fn or_limit(self, limit: u32) -> Self {
        Self { limit: self.limit.or(Some(limit)), ..self }
    }

    /// What to ask the store for: one more than shown, to know whether there is more.
    pub(crate) fn request<C: Cursor>(&self) -> Result<PageRequest<C>, Problem> {
        let after = match &self.cursor {
            None => None,
            Some(text) => Some(C::read(text).ok_or_else(|| {
                Invalid::new(
                    "cursor",
                    "is no cursor of this listing; use next_cursor of the page before as it is",
                )
            })?),
        };
        let limit = self.limit()?;
        let offset = self.offset.unwrap_or(0);
        if offset > MAX_OFFSET {
            return Err(Invalid::new(
                "offset",
                format!("must be at most {MAX_OFFSET}; use cursor to go further"),
            )
            .into());
        }
        Ok(PageRequest { after, offset, limit: limit + 1 })
    }

    fn limit(&self) -> Result<u32, Problem> {
        match self.limit.unwrap_or(DEFAULT_LIMIT) {
            limit @ 1..=MAX_LIMIT => Ok(limit),
            _ => Err(Invalid::new("limit", format!("must be from 1 to {MAX_LIMIT}")).into()),
        }
    }

    /// Puts a page together from all that the store has, or one more than shown.
    pub(crate) fn page<R, C: Cursor, T>(
        &self,
        rows: Vec<R>,
        cursor: impl Fn(&R) -> C,
        view: impl Fn(R) -> T,
    ) -> Page<T> {
        self.page_of(Listed { found: rows, stopped: None }, cursor, view)
    }

    /// Puts a page together from what a listing gave, which may have stopped early.
    pub(crate) fn page_of<R, C: Cursor, T>(
        &self,
        listed: Listed<R, C>,
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

    /// Whether a text that passes for a cursor reads as the same one when it is written again.
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
        fn no_text_breaks_a_cursor(
            text in prop_oneof![
                "(wh|evt|dlv|key)_[0-9a-fA-F]{32}(\\.(dlv|evt)_[0-9a-f]{32})?", "\\PC{0,80}", any::<String>(),
            ],
        ) {
            prop_assert!(is_steady::<WebhookId>(&text) && is_steady::<EventId>(&text));
            prop_assert!(is_steady::<DeliveryId>(&text) && is_steady::<KeyId>(&text));
            prop_assert!(is_steady::<TenantId>(&text) && is_steady::<DeliveryCursor>(&text));
            // What is no cursor of a listing is refused, never taken for its beginning.
            let asked = request::<DeliveryCursor>(Some(&text), None, None);
            prop_assert_eq!(asked.map(|asked| asked.after), DeliveryCursor::read(&text).map(Some));
        }

        #[test]
        fn every_cursor_is_read_as_it_was_written(event: [u8; 16], delivery: [u8; 16]) {
            let (event, delivery) = (EventId::from_bytes(event), DeliveryId::from_bytes(delivery));
            let cursor = DeliveryCursor { event, delivery };
            prop_assert_eq!(DeliveryCursor::read(&cursor.write()), Some(cursor));
            prop_assert_eq!(EventId::read(&event.write()), Some(event));
        }

        #[test]
        fn a_page_is_never_larger_than_allowed(limit in prop_oneof![0..600u32, any::<u32>()], offset: u32, rows in 0..1_200usize) {
            let paging = Paging { limit: Some(limit), ..Paging::default() };
            match request::<EventId>(None, Some(limit), Some(offset)) {
                Some(asked) => {
                    prop_assert!((1..=MAX_LIMIT).contains(&limit) && offset <= MAX_OFFSET);
                    let found = rows.min(asked.limit as usize);
                    let page = paging.page(vec![(); found], |()| EventId::from_bytes([1; 16]), |()| ());
                    prop_assert!(page.data.len() <= limit as usize);
                    prop_assert_eq!(page.next_cursor.is_some(), rows > limit as usize);
                }
                None => prop_assert!(!(1..=MAX_LIMIT).contains(&limit) || offset > MAX_OFFSET),
            }
        }
    }
}
