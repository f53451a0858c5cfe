//! Why something was not done, in terms of the use case. Surfaces translate it; nobody logs it twice.

use redrive_core::Invalid;
use redrive_engine::{ChangeError, PublishError, ReplayError};
use redrive_store::StoreError;

/// The code of whatever needs a payload that was erased.
pub(crate) const PAYLOAD_ERASED: &str = "payload_erased";

/// Why a use case was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppError {
    /// No key, or one that is not known.
    #[error("send a valid API key as `Authorization: Bearer <key>`")]
    Unauthorized,
    /// The key may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// Something in the request is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// What was published is not what it has to be.
    #[error("{detail}")]
    Unfit {
        /// A stable name for programs.
        code: &'static str,
        /// The offending field.
        field: String,
        /// What to do, for people.
        detail: String,
    },
    /// The request is well formed and cannot be carried out as it is.
    #[error("{detail}")]
    Unprocessable {
        /// A stable name for programs.
        code: &'static str,
        /// The offending field, if it is one.
        field: Option<String>,
        /// What to do, for people.
        detail: String,
    },
    /// There is no such thing, or it is somebody else's.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// It does not fit with how things are.
    #[error("{detail}")]
    Conflict {
        /// A stable name for programs.
        code: &'static str,
        /// What to do, for people.
        detail: String,
    },
    /// The payload is too large.
    #[error("{0}")]
    TooLarge(String),
    /// Checking a batch takes too much work.
    #[error("{0}")]
    BatchTooCostly(String),
    /// The tenant may not do more of it for now.
    #[error("{detail}")]
    OverQuota {
        /// What to do, for people.
        detail: String,
        /// In how many seconds it may.
        retry_after: u64,
    },
    /// As many exports run as may.
    #[error("{most} exports run {}; wait until one is over", if *here { "on this node, which is all it runs at once" } else { "for this tenant, which is all it may have at once" })]
    TooManyExports {
        /// Whether it is this node's limit, not the tenant's.
        here: bool,
        /// How many may.
        most: u32,
    },
    /// The store cannot do it now.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AppError {
    pub(crate) fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::Conflict { code, detail: detail.into() }
    }

    fn unfit_type(code: &'static str, error: &PublishError) -> Self {
        Self::Unfit { code, field: "event_type".into(), detail: format!("event_type: {error}") }
    }
}

impl From<PublishError> for AppError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Invalid(invalid) => invalid.into(),
            PublishError::Reserved => Invalid::new("event_type", error.to_string()).into(),
            PublishError::Misfit(misfit) => {
                let detail = format!("{misfit}; GET /v1/event-types shows what payloads have to look like");
                Self::Unfit { code: "schema_violation", field: misfit.field.into_owned(), detail }
            }
            PublishError::Unregistered(_) => Self::unfit_type("event_type_not_registered", &error),
            PublishError::Archived(_) => Self::unfit_type("event_type_archived", &error),
            PublishError::KeyReused(_) => {
                Self::conflict("idempotency_key_reused", format!("{error}; use a new key for a new event"))
            }
            PublishError::BatchTooCostly => Self::BatchTooCostly(error.to_string()),
            PublishError::NoTenant => Self::NotFound("tenant"),
            PublishError::Store(error) => error.into(),
        }
    }
}

impl From<ReplayError> for AppError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Missing => Self::NotFound("event"),
            ReplayError::NoWebhook(_) => Self::NotFound("webhook"),
            ReplayError::Nobody => Self::conflict("nothing_to_replay", error.to_string()),
            ReplayError::StillPending(_) => Self::conflict("still_pending", error.to_string()),
            ReplayError::Erased => Self::conflict(PAYLOAD_ERASED, error.to_string()),
            ReplayError::Store(error) => error.into(),
        }
    }
}

impl From<ChangeError<AppError>> for AppError {
    fn from(error: ChangeError<AppError>) -> Self {
        match error {
            ChangeError::Missing => Self::NotFound("webhook"),
            ChangeError::Refused(error) => error,
            ChangeError::Store(error) => error.into(),
        }
    }
}
