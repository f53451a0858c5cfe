//! Input and output types of a store: plain data, the same for every backend.

mod across_tenants;
mod attempts;
mod audit;
mod browser_sessions;
mod claim;
mod clock;
mod creations;
mod dead;
mod deliveries;
mod email_addresses;
mod event_types;
mod history;
mod nodes;
mod notifications;
mod operations;
mod publish;
mod rankings;
mod record;
mod redrive;
mod retention;
mod runtime_state;
mod statistics;
mod tenancy;
mod unsubscriptions;
mod webhooks;

pub use self::{
    across_tenants::*, attempts::*, audit::*, browser_sessions::*, claim::*, clock::*, creations::*, dead::*,
    deliveries::*, email_addresses::*, event_types::*, history::*, nodes::*, notifications::*, operations::*,
    publish::*, rankings::*, record::*, redrive::*, retention::*, runtime_state::*, statistics::*,
    tenancy::*, unsubscriptions::*, webhooks::*,
};
pub(crate) use self::{
    rankings::{
        DEAD_LETTERS_PER_READ, DeadLetterCount, DeadLetterCursor, DeadLetterSums, TENANTS_PER_READ, in_order,
    },
    runtime_state::BacklogCounts,
    statistics::{ALL_TENANTS_ROLLUP_ID, sum_over_tenants},
};
