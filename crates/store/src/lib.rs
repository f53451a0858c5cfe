//! The store, Redrive's source of truth, behind narrow traits whose methods are domain verbs.
//!
//! Every backend passes the same conformance suite. Backends contain no policy: the engine decides, and the
//! backend writes each decision atomically. A backend never reads a clock: `now` is an argument.

mod access_path;
pub mod archive;
mod attempt_listing;
mod batch;
mod codes;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod copy;
mod creations;
mod error;
mod model;
mod overdue;
pub mod postgres;
mod sealed;
mod sequence;
pub mod sqlite;
mod tenant_reads;
mod traits;

use std::{future::Future, pin::Pin};

pub use creations::Creations;
pub use error::{OpenError, StoreError};
pub use model::*;
pub use sequence::{PublishSequence, SequencePosition};
pub use traits::*;

/// Future result of a store operation.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Callback of a batched operation, called once; it must not block. It runs even if the caller has disconnected,
/// so that a committed lease always reaches the dispatcher.
pub type Completion<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;
