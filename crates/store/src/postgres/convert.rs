//! Conversion between rows and domain types.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use redrive_core::{
    AttemptId, AuditId, DeliveryId, EventId, KeyId, NotificationId, OperationId, TenantId, Time, WebhookId,
    delivery::lane::Lane, event::trace::Trace,
};
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked},
};

use super::session::Failure;
use crate::codes::Code;

/// Wraps a domain type so that it can be written to and read from a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Col<T>(pub(super) T);

type Converted<T> = Result<T, Box<dyn Error + Sync + Send>>;

/// Reads a column as a domain type.
pub(super) fn get<T>(row: &Row, column: usize) -> Result<T, Failure>
where
    for<'a> Col<T>: FromSql<'a>,
{
    row.try_get::<_, Col<T>>(column).map(|col| col.0).map_err(Failure::from)
}

/// Reads a column that may be null.
pub(super) fn get_opt<T>(row: &Row, column: usize) -> Result<Option<T>, Failure>
where
    for<'a> Col<T>: FromSql<'a>,
{
    Ok(row.try_get::<_, Option<Col<T>>>(column)?.map(|col| col.0))
}

/// Reads a column of a type that the driver knows.
pub(super) fn plain<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Failure> {
    row.try_get(column).map_err(Failure::from)
}

/// Reads a text that is stored as bytes.
pub(super) fn text_opt(row: &Row, column: usize) -> Result<Option<String>, Failure> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// Reads 32 bytes.
pub(super) fn hash(row: &Row, column: usize) -> Result<[u8; 32], Failure> {
    let bytes: &[u8] = row.try_get(column)?;
    bytes.try_into().map_err(|_| Failure::InvalidData("a hash of the wrong length".into()))
}

/// Reads the number of Redrive deliveries that an event has passed through.
pub(super) fn hops(row: &Row, column: usize) -> Result<u8, Failure> {
    Ok(u8::try_from(plain::<i16>(row, column)?).unwrap_or(u8::MAX))
}

/// Reads the trace of an event. Returns `None` if it cannot be decoded.
pub(super) fn trace(row: &Row, column: usize) -> Result<Option<Box<Trace>>, Failure> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    Ok(bytes.and_then(Trace::from_bytes).map(Box::new))
}

macro_rules! id_column {
    ($($id:ty),*) => {$(
        impl ToSql for Col<$id> {
            fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Converted<IsNull> {
                out.put_slice(self.0.as_bytes());
                Ok(IsNull::No)
            }
            accepts!(UUID);
            to_sql_checked!();
        }

        impl<'a> FromSql<'a> for Col<$id> {
            fn from_sql(_: &Type, raw: &'a [u8]) -> Converted<Self> {
                Ok(Col(<$id>::from_bytes(raw.try_into()?)))
            }
            accepts!(UUID);
        }
    )*};
}
id_column!(AttemptId, AuditId, DeliveryId, EventId, KeyId, NotificationId, OperationId, WebhookId);

/// Any 16 bytes, such as the lowest id of a time.
impl ToSql for Col<[u8; 16]> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Converted<IsNull> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }
    accepts!(UUID);
    to_sql_checked!();
}

impl ToSql for Col<Time> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Converted<IsNull> {
        self.0.millis().to_sql(of, out)
    }
    accepts!(INT8);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Col<Time> {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Converted<Self> {
        i64::from_sql(of, raw).map(|millis| Col(Time::from_millis(millis)))
    }
    accepts!(INT8);
}

impl<'a> FromSql<'a> for Col<TenantId> {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Converted<Self> {
        Ok(Col(TenantId::parse(<&str>::from_sql(of, raw)?)?))
    }
    accepts!(TEXT);
}

impl<'a> FromSql<'a> for Col<Lane> {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Converted<Self> {
        Lane::parse(<&str>::from_sql(of, raw)?).map(Col).ok_or_else(|| "an invalid lane".into())
    }
    accepts!(TEXT);
}

impl<T: Code> ToSql for Col<T> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Converted<IsNull> {
        self.0.code().to_sql(of, out)
    }
    accepts!(INT2);
    to_sql_checked!();
}

impl<'a, T: Code> FromSql<'a> for Col<T> {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Converted<Self> {
        let code = i16::from_sql(of, raw)?;
        T::from_code(code).map(Col).ok_or_else(|| format!("unknown code {code}").into())
    }
    accepts!(INT2);
}
