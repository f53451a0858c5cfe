//! What goes into a store and what comes out: plain data, the same for every backend.

mod audit;
mod claim;
mod dead;
mod deliveries;
mod event_types;
mod gates;
mod history;
mod keeping;
mod nodes;
mod operations;
mod publish;
mod record;
mod redrive;
mod tenancy;
mod webhooks;

pub use self::{
    audit::*, claim::*, dead::*, deliveries::*, event_types::*, gates::*, history::*, keeping::*, nodes::*,
    operations::*, publish::*, record::*, redrive::*, tenancy::*, webhooks::*,
};
