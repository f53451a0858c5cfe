//! The traits of a store, by family.

mod cluster;
mod delivery;
mod history;
mod notifications;
mod retention;
mod statistics;
mod tenancy;
mod webhooks;

use crate::Creations;

pub use self::{
    cluster::{ChangeLog, Clocks, Nodes},
    delivery::{Cancellations, Claim, Leases, Operations, Publish, Record, Redrive},
    history::{AcrossTenants, Attempts, History},
    notifications::{EmailAddresses, Notifications, Unsubscriptions},
    retention::{ArchiveOutbox, Erase, Maintenance, Prune},
    statistics::{Health, Rankings, Statistics, StoreStats},
    tenancy::{Audit, BrowserSessions, EventTypeChanges, EventTypes, Tenancy},
    webhooks::{Config, RuntimeState, Secrets, WebhookHistory, WebhookTimers, Webhooks},
};

/// Everything that a backend implements.
pub trait Store:
    Publish
    + Record
    + Claim
    + Nodes
    + RuntimeState
    + Statistics
    + Rankings
    + Webhooks
    + EventTypes
    + Tenancy
    + Creations
    + BrowserSessions
    + History
    + Attempts
    + AcrossTenants
    + Redrive
    + Operations
    + Secrets
    + Audit
    + EmailAddresses
    + Unsubscriptions
    + Notifications
    + Clocks
    + Maintenance
    + Prune
    + Erase
    + ArchiveOutbox
    + Leases
    + ChangeLog
    + Config
    + EventTypeChanges
    + WebhookTimers
    + Cancellations
    + WebhookHistory
    + Health
{
}

impl<T> Store for T where
    T: Publish
        + Record
        + Claim
        + Nodes
        + RuntimeState
        + Statistics
        + Rankings
        + Webhooks
        + EventTypes
        + Tenancy
        + Creations
        + BrowserSessions
        + History
        + Attempts
        + AcrossTenants
        + Redrive
        + Operations
        + Secrets
        + Audit
        + EmailAddresses
        + Unsubscriptions
        + Notifications
        + Clocks
        + Maintenance
        + Prune
        + Erase
        + ArchiveOutbox
        + Leases
        + ChangeLog
        + Config
        + EventTypeChanges
        + WebhookTimers
        + Cancellations
        + WebhookHistory
        + Health
{
}
