//! Visibility: portal sessions must never see webhooks that the operator manages, nor anything about them.

use std::{collections::HashSet, ops::Deref};

use redrive_core::{TenantId, WebhookId, webhook::Webhook};
use redrive_store::{DeliveryFilter, ListingPage, PageRequest, StoreError, Visibility};

use super::{App, AppError};

/// Tenant, restricted to what a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// Id of the tenant.
    pub id: TenantId,
    /// Whether webhooks managed by the operator are hidden from the caller.
    pub tenant_managed_only: bool,
}

impl TenantView {
    /// Returns whether the caller may see a webhook.
    pub fn can_see(&self, webhook: &Webhook) -> bool {
        webhook.tenant_id == self.id && !(self.tenant_managed_only && webhook.spec.is_operator_managed())
    }

    /// Returns which webhooks are included in listings for the caller.
    pub fn visibility(&self) -> Visibility {
        if self.tenant_managed_only { Visibility::TenantManaged } else { Visibility::All }
    }

    /// Restricts a filter to what the caller may see.
    pub fn restrict(&self, filter: DeliveryFilter) -> DeliveryFilter {
        DeliveryFilter {
            tenant_managed_only: filter.tenant_managed_only || self.tenant_managed_only,
            ..filter
        }
    }
}

impl Deref for TenantView {
    type Target = TenantId;

    fn deref(&self) -> &TenantId {
        &self.id
    }
}

impl From<TenantId> for TenantView {
    /// Returns an unrestricted view of a tenant.
    fn from(id: TenantId) -> Self {
        Self { id, tenant_managed_only: false }
    }
}

impl From<&Self> for TenantView {
    fn from(view: &Self) -> Self {
        view.clone()
    }
}

/// Minimum rows read per round, and maximum rounds per request. After that a page ends early, with a cursor.
const MIN_ROUND_ROWS: u32 = 500;
const MAX_ROUNDS: u32 = 4;

/// Page that is filled in several rounds, because the caller may not see all rows that the store returns.
pub(super) struct VisiblePage<T, C> {
    limit: usize,
    /// Visible rows still to skip before the page starts.
    offset: usize,
    round_rows: u32,
    rounds: u32,
    after: Option<C>,
    is_done: bool,
    rows: Vec<T>,
}

impl<T, C: Copy> VisiblePage<T, C> {
    pub(super) fn new(page: PageRequest<C>) -> Self {
        Self {
            limit: page.limit as usize,
            offset: page.offset as usize,
            round_rows: page.limit.max(MIN_ROUND_ROWS),
            rounds: 0,
            after: page.after,
            is_done: false,
            rows: Vec::new(),
        }
    }

    /// Returns the rows to read next. Returns `None` if the page is full, no rows follow, or the maximum of rounds is
    /// reached.
    pub(super) fn next_round(&mut self) -> Option<PageRequest<C>> {
        if self.is_done || self.rounds == MAX_ROUNDS {
            return None;
        }
        self.rounds += 1;
        Some(PageRequest { after: self.after, offset: 0, limit: self.round_rows })
    }

    /// Adds the visible rows of a round that read `found` rows and ended with `last`.
    pub(super) fn add(&mut self, found: usize, last: Option<C>, visible: Vec<T>) {
        let skipped = self.offset.min(visible.len());
        self.offset -= skipped;
        self.rows.extend(visible.into_iter().skip(skipped));
        self.is_done = found < self.round_rows as usize || self.rows.len() >= self.limit;
        self.rows.truncate(self.limit);
        self.after = last.or(self.after);
    }

    /// Returns the page, with a cursor if it ended early. Fails if it ended before its offset was reached.
    pub(super) fn finish(self) -> Result<ListingPage<T, C>, StoreError> {
        if self.is_done {
            return Ok(ListingPage { found: self.rows, stopped: None });
        }
        if self.offset > 0 {
            return Err(StoreError::OffsetTooFar);
        }
        Ok(ListingPage { found: self.rows, stopped: self.after })
    }
}

impl App {
    /// Returns the webhooks of a tenant that are hidden from the caller, without deleted ones.
    pub(super) async fn hidden_webhooks(&self, view: &TenantView) -> Result<HashSet<WebhookId>, AppError> {
        match view.tenant_managed_only {
            true => Ok(self.engine.operator_webhooks(&view.id).await?),
            false => Ok(HashSet::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists the multiples of 1,000 below `size`, largest first. Returns the page and the number of rows read.
    fn list_visible(size: u32, page: PageRequest<u32>) -> (Result<ListingPage<u32, u32>, StoreError>, usize) {
        let (mut visible, mut read) = (VisiblePage::new(page), 0);
        while let Some(round) = visible.next_round() {
            let below = round.after.unwrap_or(size);
            let found: Vec<_> = (0..below).rev().take(round.limit as usize).collect();
            read += found.len();
            let shown = found.iter().copied().filter(|number| number % 1_000 == 0).collect();
            visible.add(found.len(), found.last().copied(), shown);
        }
        (visible.finish(), read)
    }

    fn page(after: Option<u32>, offset: u32, limit: u32) -> PageRequest<u32> {
        PageRequest { after, offset, limit }
    }

    #[test]
    fn hidden_rows_are_read_in_bounded_rounds() {
        let (listed, read) = list_visible(1_500, page(None, 0, 2));
        assert_eq!(listed.unwrap(), ListingPage { found: vec![1_000, 0], stopped: None });
        assert_eq!(read, 1_500);
        let (listed, read) = list_visible(100_000, page(None, 0, 50));
        assert_eq!(listed.unwrap(), ListingPage { found: vec![99_000, 98_000], stopped: Some(98_000) });
        assert_eq!(read, 2_000);
        let (listed, _) = list_visible(100_000, page(Some(98_000), 0, 1));
        assert_eq!(listed.unwrap(), ListingPage { found: vec![97_000], stopped: None });
    }

    #[test]
    fn offset_counts_only_visible_rows() {
        let (listed, _) = list_visible(2_500, page(None, 1, 1));
        assert_eq!(listed.unwrap().found, [1_000]);
        let (listed, read) = list_visible(100_000, page(None, 10, 1));
        assert!(matches!(listed, Err(StoreError::OffsetTooFar)));
        assert_eq!(read, 2_000);
    }

    #[test]
    fn paging_by_cursor_returns_every_visible_row_once() {
        let (mut listed_rows, mut after) = (Vec::<u32>::new(), None);
        loop {
            let (listed, _) = list_visible(20_000, page(after, 0, 3));
            let listed = listed.unwrap();
            listed_rows.extend(&listed.found);
            after = match listed.stopped {
                Some(stopped) => Some(stopped),
                None if listed.found.len() == 3 => listed.found.last().copied(),
                None => break,
            };
        }
        assert_eq!(listed_rows, (0..20).rev().map(|number| number * 1_000).collect::<Vec<_>>());
    }
}
