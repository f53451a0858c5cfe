//! Between rows and types. Small numbers stand for names; what they mean is fixed for good here.

use redrive_core::{
    AttemptId, DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, KeyId, TenantId, Time,
    WebhookId,
    breaker::CircuitState,
    event::PayloadFormat,
    lane::{Lane, Priority},
};
use rusqlite::{
    Row, ToSql,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef},
};

use crate::AttemptStatus;

/// Wraps a domain type so that it can be written to and read from a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Col<T>(pub(super) T);

/// Reads a column as a domain type.
pub(super) fn get<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    Col<T>: FromSql,
{
    row.get::<_, Col<T>>(column).map(|col| col.0)
}

/// Reads a column that may be null.
pub(super) fn get_opt<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>>
where
    Col<T>: FromSql,
{
    Ok(row.get::<_, Option<Col<T>>>(column)?.map(|col| col.0))
}

macro_rules! id_column {
    ($($id:ty),*) => {$(
        impl ToSql for Col<$id> {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0.as_bytes())))
            }
        }

        impl FromSql for Col<$id> {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                <[u8; 16]>::column_result(value).map(|bytes| Col(<$id>::from_bytes(bytes)))
            }
        }
    )*};
}
id_column!(AttemptId, DeliveryId, EventId, KeyId, WebhookId);

impl ToSql for Col<Time> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.millis().into())
    }
}

impl FromSql for Col<Time> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(|millis| Col(Time::from_millis(millis)))
    }
}

impl ToSql for Col<&TenantId> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.as_str().into())
    }
}

impl FromSql for Col<TenantId> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        TenantId::parse(value.as_str()?).map(Col).map_err(FromSqlError::other)
    }
}

impl FromSql for Col<Lane> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Lane::parse(value.as_str()?).map(Col).ok_or(FromSqlError::InvalidType)
    }
}

macro_rules! code_column {
    ($($type:ty { $($variant:path = $code:literal),* $(,)? })*) => {$(
        impl ToSql for Col<$type> {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                let code: i64 = match self.0 { $($variant => $code),* };
                Ok(code.into())
            }
        }

        impl FromSql for Col<$type> {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                match value.as_i64()? {
                    $($code => Ok(Col($variant)),)*
                    other => Err(FromSqlError::OutOfRange(other)),
                }
            }
        }
    )*};
}
code_column! {
    // `InFlight` is never stored: a request under way is known to the node that sends it.
    DeliveryStatus {
        DeliveryStatus::Pending = 0,
        DeliveryStatus::InFlight = 1,
        DeliveryStatus::Delivered = 2,
        DeliveryStatus::Dead = 3,
        DeliveryStatus::Cancelled = 4,
    }
    DeadReason {
        DeadReason::Permanent = 1,
        DeadReason::Exhausted = 2,
        DeadReason::TlsLimit = 3,
        DeadReason::BlockedAddress = 4,
        DeadReason::Expired = 5,
    }
    FailureCategory {
        FailureCategory::Timeout = 1,
        FailureCategory::ServerError = 2,
        FailureCategory::ClientError = 3,
        FailureCategory::Network = 4,
        FailureCategory::Dns = 5,
        FailureCategory::Tls = 6,
        FailureCategory::RateLimit = 7,
        FailureCategory::PayloadTooLarge = 8,
        FailureCategory::Redirect = 9,
        FailureCategory::BlockedAddress = 10,
    }
    AttemptStatus {
        AttemptStatus::Success = 1,
        AttemptStatus::Failed = 2,
        AttemptStatus::Exhausted = 3,
    }
    Priority {
        Priority::High = 1,
        Priority::Normal = 2,
        Priority::Low = 3,
    }
    CircuitState {
        CircuitState::Closed = 0,
        CircuitState::Open = 1,
        CircuitState::HalfOpen = 2,
    }
    PayloadFormat {
        PayloadFormat::Envelope = 1,
        PayloadFormat::Data = 2,
    }
}
