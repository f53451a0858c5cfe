//! What goes into a store and what comes out: plain data, the same for every backend.

mod audit;
mod browser_sessions;
mod claim;
mod clock;
mod dead;
mod deliveries;
mod event_types;
mod figures;
mod gates;
mod history;
mod keeping;
mod mail_addresses;
mod nodes;
mod notices;
mod operations;
mod publish;
mod record;
mod redrive;
mod tenancy;
mod unsubscribed;
mod webhooks;

pub(crate) use self::gates::Counted;
pub use self::{
    audit::*, browser_sessions::*, claim::*, clock::*, dead::*, deliveries::*, event_types::*, figures::*,
    gates::*, history::*, keeping::*, mail_addresses::*, nodes::*, notices::*, operations::*, publish::*,
    record::*, redrive::*, tenancy::*, unsubscribed::*, webhooks::*,
};
