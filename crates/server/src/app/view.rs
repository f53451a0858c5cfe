//! A tenant's things as one caller sees them: portal sessions see nothing of webhooks that the operator manages.

use std::{collections::HashSet, ops::Deref};

use redrive_core::{TenantId, WebhookId, webhook::Webhook};
use redrive_store::{DeliveryFilter, Listed, PageRequest, StoreError, Visibility};

use super::{App, AppError};

/// A tenant, and how much of it a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// The tenant.
    pub id: TenantId,
    /// Whether webhooks that the operator manages do not exist for the caller.
    pub tenant_managed_only: bool,
}

impl TenantView {
    /// Whether the caller sees a webhook.
    pub fn sees(&self, webhook: &Webhook) -> bool {
        webhook.tenant == self.id && !(self.tenant_managed_only && webhook.spec.is_operator_managed())
    }

    /// The webhooks that listings for the caller cover.
    pub fn visibility(&self) -> Visibility {
        if self.tenant_managed_only { Visibility::TenantManaged } else { Visibility::All }
    }

    /// A filter that leaves out what the caller does not see.
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
    /// Everything of a tenant.
    fn from(id: TenantId) -> Self {
        Self { id, tenant_managed_only: false }
    }
}

impl From<&Self> for TenantView {
    fn from(view: &Self) -> Self {
        view.clone()
    }
}

/// Rows that are read in one round at least, and rounds of one request. Beyond them a page ends early, with a cursor.
const MIN_ROUND_ROWS: u32 = 500;
const MAX_ROUNDS: u32 = 4;

/// A page that is filled in several rounds, since the caller does not see all rows that the store returns.
pub(super) struct VisiblePage<T, C> {
    limit: usize,
    /// Visible rows to leave out before the page begins.
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

    /// The rows to read next. Returns `None` once the page is full, nothing follows, or too many rounds were read.
    pub(super) fn next_round(&mut self) -> Option<PageRequest<C>> {
        if self.is_done || self.rounds == MAX_ROUNDS {
            return None;
        }
        self.rounds += 1;
        Some(PageRequest { after: self.after, offset: 0, limit: self.round_rows })
    }

    /// Adds what the caller sees of a round of `found` rows, of which `last` is the last.
    pub(super) fn add(&mut self, found: usize, last: Option<C>, visible: Vec<T>) {
        let left_out = self.offset.min(visible.len());
        self.offset -= left_out;
        self.rows.extend(visible.into_iter().skip(left_out));
        self.is_done = found < self.round_rows as usize || self.rows.len() >= self.limit;
        self.rows.truncate(self.limit);
        self.after = last.or(self.after);
    }

    /// The page. Where it ended early, it says how far was read. Fails if that is before its offset.
    pub(super) fn finish(self) -> Result<Listed<T, C>, StoreError> {
        if self.is_done {
            return Ok(Listed { found: self.rows, stopped: None });
        }
        if self.offset > 0 {
            return Err(StoreError::OffsetTooFar);
        }
        Ok(Listed { found: self.rows, stopped: self.after })
    }
}

impl App {
    /// The webhooks of a tenant that the caller does not see, as far as they are not deleted.
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

    /// Lists the multiples of 1,000 among numbers below `size`, from the largest down. Returns the page and the rows that were read.
    fn list_visible(size: u32, page: PageRequest<u32>) -> (Result<Listed<u32, u32>, StoreError>, usize) {
        let (mut visible, mut read) = (VisiblePage::new(page), 0);
        while let Some(round) = visible.next_round() {
            let below = round.after.unwrap_or(size);
            let found: Vec<_> = (0..below).rev().take(round.limit as usize).collect();
            read += found.len();
            let seen = found.iter().copied().filter(|number| number % 1_000 == 0).collect();
            visible.add(found.len(), found.last().copied(), seen);
        }
        (visible.finish(), read)
    }

    fn page(after: Option<u32>, offset: u32, limit: u32) -> PageRequest<u32> {
        PageRequest { after, offset, limit }
    }

    #[test]
    fn hidden_rows_are_read_in_bounded_rounds() {
        let (listed, read) = list_visible(1_500, page(None, 0, 2));
        assert_eq!(listed.unwrap(), Listed { found: vec![1_000, 0], stopped: None });
        assert_eq!(read, 1_500);
        let (listed, read) = list_visible(100_000, page(None, 0, 50));
        assert_eq!(listed.unwrap(), Listed { found: vec![99_000, 98_000], stopped: Some(98_000) });
        assert_eq!(read, 2_000);
        let (listed, _) = list_visible(100_000, page(Some(98_000), 0, 1));
        assert_eq!(listed.unwrap(), Listed { found: vec![97_000], stopped: None });
    }

    #[test]
    fn offset_counts_visible_rows_alone() {
        let (listed, _) = list_visible(2_500, page(None, 1, 1));
        assert_eq!(listed.unwrap().found, [1_000]);
        let (listed, read) = list_visible(100_000, page(None, 10, 1));
        assert!(matches!(listed, Err(StoreError::OffsetTooFar)));
        assert_eq!(read, 2_000);
    }

    #[test]
    fn walk_by_cursors_meets_every_visible_row_once() {
        let (mut seen, mut after) = (Vec::<u32>::new(), None);
        loop {
            let (listed, _) = list_visible(20_000, page(after, 0, 3));
            let listed = listed.unwrap();
            seen.extend(&listed.found);
            after = match listed.stopped {
                Some(stopped) => Some(stopped),
                None if listed.found.len() == 3 => listed.found.last().copied(),
                None => break,
            };
        }
        assert_eq!(seen, (0..20).rev().map(|number| number * 1_000).collect::<Vec<_>>());
    }
}
