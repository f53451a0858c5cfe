//! Errors of use cases. The API and the dashboard translate them; each error is logged at most once.

use redrive_core::FieldError;
use redrive_engine::{ChangeError, PublishError, ReplayError};
use redrive_store::StoreError;

use super::ErrorCode;

/// Returns the stable code of a store error.
pub(crate) fn store_error_code(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::TooSlow => ErrorCode::QueryTooSlow,
        StoreError::OffsetTooFar => ErrorCode::InvalidField,
        StoreError::Overloaded => ErrorCode::Overloaded,
        StoreError::Busy(_) => ErrorCode::Busy,
        StoreError::Unavailable(_)
        | StoreError::WriterEnded(_)
        | StoreError::Fenced
        | StoreError::PrecedingEventFailed
        | StoreError::InvalidItem(_) => ErrorCode::StoreUnavailable,
    }
}

/// Error of a use case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppError {
    /// The key is missing or unknown.
    #[error("send a valid API key as `Authorization: Bearer <key>`")]
    Unauthorized,
    /// The key lacks a permission.
    #[error("{0}")]
    Forbidden(String),
    /// A field of the request is invalid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// The body is not valid JSON, or has the wrong shape.
    #[error("{detail}")]
    Malformed {
        /// Stable error code.
        code: ErrorCode,
        /// Description with instructions.
        detail: String,
    },
    /// The published event violates the event type catalogue or its schema.
    #[error("{detail}")]
    SchemaViolation {
        /// Stable error code.
        code: ErrorCode,
        /// Invalid field.
        field: String,
        /// Description with instructions.
        detail: String,
    },
    /// The request is well formed but cannot be processed.
    #[error("{detail}")]
    Unprocessable {
        /// Stable error code.
        code: ErrorCode,
        /// Field that causes the error, if it is a single one.
        field: Option<String>,
        /// Description with instructions.
        detail: String,
    },
    /// The object does not exist or belongs to another tenant.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The request conflicts with the current state.
    #[error("{detail}")]
    Conflict {
        /// Stable error code.
        code: ErrorCode,
        /// Description with instructions.
        detail: String,
    },
    /// The payload is too large.
    #[error("{0}")]
    TooLarge(String),
    /// Validating the batch takes too much work.
    #[error("{0}")]
    BatchTooCostly(String),
    /// A quota or limit is exhausted for now.
    #[error("{detail}")]
    OverQuota {
        /// Description with instructions.
        detail: String,
        /// Seconds until a retry can succeed.
        retry_after: u64,
    },
    /// The limit of concurrent exports is reached.
    #[error("the limit of {max} concurrent exports {} is reached; wait until one has ended", if *here { "of this node" } else { "of this tenant" })]
    TooManyExports {
        /// Whether the limit is this node's, not the tenant's.
        here: bool,
        /// Maximum number of concurrent exports.
        max: u32,
    },
    /// The limit of concurrent payload searches is reached.
    #[error("the limit of {max} concurrent payload searches {} is reached; wait until one has ended", if *here { "of this node" } else { "of this caller" })]
    TooManySearches {
        /// Whether the limit is this node's, not the caller's.
        here: bool,
        /// Maximum number of concurrent searches.
        max: u32,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AppError {
    pub(crate) fn conflict(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self::Conflict { code, detail: detail.into() }
    }

    /// Returns the error for a uid that another webhook of the tenant has.
    pub(crate) fn uid_taken() -> Self {
        let detail = "another webhook of the tenant has this uid; choose another one, or change that webhook with PUT \
                      /v1/webhooks/{uid}";
        Self::conflict(ErrorCode::WebhookExists, detail)
    }

    pub(crate) fn malformed(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self::Malformed { code, detail: detail.into() }
    }

    /// Returns the stable error code, as in responses of the API and in messages that a source rejects.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unauthorized => ErrorCode::Unauthorized,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Invalid(_) => ErrorCode::InvalidField,
            Self::Malformed { code, .. }
            | Self::SchemaViolation { code, .. }
            | Self::Unprocessable { code, .. }
            | Self::Conflict { code, .. } => *code,
            Self::NotFound(_) => ErrorCode::NotFound,
            Self::TooLarge(_) => ErrorCode::PayloadTooLarge,
            Self::BatchTooCostly(_) => ErrorCode::BatchTooCostly,
            Self::OverQuota { .. } => ErrorCode::QuotaExceeded,
            Self::TooManyExports { .. } => ErrorCode::TooManyExports,
            Self::TooManySearches { .. } => ErrorCode::TooManySearches,
            Self::Store(error) => store_error_code(error),
        }
    }

    fn invalid_event_type(code: ErrorCode, error: &PublishError) -> Self {
        Self::SchemaViolation { code, field: "event_type".into(), detail: format!("event_type: {error}") }
    }
}

impl From<PublishError> for AppError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Invalid(invalid) => invalid.into(),
            PublishError::Reserved => FieldError::new("event_type", error.to_string()).into(),
            PublishError::SchemaViolation(violation) => {
                let detail = format!("{violation}; GET /v1/event-types returns the schema");
                Self::SchemaViolation {
                    code: ErrorCode::SchemaViolation,
                    field: violation.field.into_owned(),
                    detail,
                }
            }
            PublishError::Unregistered(_) => {
                Self::invalid_event_type(ErrorCode::EventTypeNotRegistered, &error)
            }
            PublishError::Archived(_) => Self::invalid_event_type(ErrorCode::EventTypeArchived, &error),
            PublishError::KeyReused(_) => Self::conflict(
                ErrorCode::IdempotencyKeyReused,
                format!("{error}; use a new key for a new event"),
            ),
            PublishError::BatchTooCostly => Self::BatchTooCostly(error.to_string()),
            PublishError::NoTenant => Self::NotFound("tenant"),
            PublishError::ConfigKeepsChanging => StoreError::Busy(error.to_string()).into(),
            PublishError::Store(error) => error.into(),
        }
    }
}

impl From<ReplayError> for AppError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::NotFound => Self::NotFound("event"),
            ReplayError::NoWebhook(_) => Self::NotFound("webhook"),
            ReplayError::NoTarget => Self::conflict(ErrorCode::NothingToReplay, error.to_string()),
            ReplayError::StillPending(_) => Self::conflict(ErrorCode::DeliveryPending, error.to_string()),
            ReplayError::Erased => Self::conflict(ErrorCode::PayloadErased, error.to_string()),
            ReplayError::Store(error) => error.into(),
        }
    }
}

impl From<ChangeError<AppError>> for AppError {
    fn from(error: ChangeError<AppError>) -> Self {
        match error {
            ChangeError::NotFound => Self::NotFound("webhook"),
            ChangeError::UidTaken => Self::uid_taken(),
            ChangeError::Rejected(error) => error,
            ChangeError::Store(error) => error.into(),
        }
    }
}
