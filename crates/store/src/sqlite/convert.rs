//! Conversion between rows and domain types.

use redrive_core::{
    AttemptId, AuditId, DeliveryId, EventId, KeyId, NotificationId, OperationId, TenantId, Time, WebhookId,
    delivery::lane::Lane, event::trace::Trace,
};
use rusqlite::{
    Row, ToSql,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef},
};

use crate::codes::Code;

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

/// Reads the trace of an event. Returns `None` if it cannot be decoded.
pub(super) fn trace(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Box<Trace>>> {
    let bytes = row.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
    Ok(bytes.and_then(Trace::from_bytes).map(Box::new))
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
id_column!(AttemptId, AuditId, DeliveryId, EventId, KeyId, NotificationId, OperationId, WebhookId);

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

impl<T: Code> ToSql for Col<T> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(i64::from(self.0.code()).into())
    }
}

impl<T: Code> FromSql for Col<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let code = value.as_i64()?;
        i16::try_from(code).ok().and_then(T::from_code).map(Col).ok_or(FromSqlError::OutOfRange(code))
    }
}
