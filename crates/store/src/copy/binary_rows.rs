//! Encoder for PostgreSQL's binary `COPY` format: each value as its length and its bytes.

use bytes::{BufMut, Bytes, BytesMut};
use rusqlite::types::ValueRef;

use super::tables::Kind;

const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Replacement for a character that cannot be stored.
const REPLACEMENT: &str = "\u{fffd}";

/// Encoded rows.
pub(crate) struct BinaryRows(BytesMut);

impl BinaryRows {
    pub(crate) fn new() -> Self {
        Self(BytesMut::from(HEADER))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Begins a row of `columns` values.
    pub(crate) fn begin_row(&mut self, columns: usize) {
        self.0.put_i16(columns as i16);
    }

    /// Adds a value. Returns whether it had to be altered.
    pub(crate) fn add(&mut self, kind: Kind, value: ValueRef<'_>) -> Result<bool, String> {
        match (kind, value) {
            (_, ValueRef::Null) => self.0.put_i32(-1),
            (Kind::Id, ValueRef::Blob(id)) if id.len() == 16 => self.sized(id),
            (Kind::Bytes, ValueRef::Blob(bytes) | ValueRef::Text(bytes)) => self.sized(bytes),
            (Kind::Text, ValueRef::Text(text)) => return Ok(self.text(text)),
            (Kind::Small, ValueRef::Integer(n)) => self.sized(&narrow::<i16>(n)?.to_be_bytes()),
            (Kind::Int, ValueRef::Integer(n)) => self.sized(&narrow::<i32>(n)?.to_be_bytes()),
            (Kind::Bits, ValueRef::Integer(n)) => self.sized(&narrow::<u32>(n)?.to_be_bytes()),
            (Kind::Big, ValueRef::Integer(n)) => self.sized(&n.to_be_bytes()),
            (Kind::Flag, ValueRef::Integer(n @ 0..=1)) => self.sized(&[n as u8]),
            (kind, value) => {
                return Err(format!("a value of type {} cannot be converted to {kind:?}", value.data_type()));
            }
        }
        Ok(false)
    }

    fn sized(&mut self, bytes: &[u8]) {
        self.0.put_i32(bytes.len() as i32);
        self.0.put_slice(bytes);
    }

    /// Adds a text. PostgreSQL accepts only UTF-8 without NUL, so other bytes are replaced.
    fn text(&mut self, text: &[u8]) -> bool {
        match std::str::from_utf8(text) {
            Ok(good) if !good.contains('\0') => {
                self.sized(text);
                false
            }
            _ => {
                let good = String::from_utf8_lossy(text).replace('\0', REPLACEMENT);
                self.sized(good.as_bytes());
                true
            }
        }
    }

    /// Ends the rows and returns them.
    pub(crate) fn finish(mut self) -> Bytes {
        self.0.put_i16(-1);
        self.0.freeze()
    }
}

fn narrow<T: TryFrom<i64>>(n: i64) -> Result<T, String> {
    T::try_from(n).map_err(|_| format!("{n} does not fit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(kind: Kind, value: ValueRef<'_>) -> Result<(Vec<u8>, bool), String> {
        let mut packed = BinaryRows::new();
        let altered = packed.add(kind, value)?;
        Ok((packed.finish()[HEADER.len()..].strip_suffix(&[0xff, 0xff]).unwrap().to_vec(), altered))
    }

    fn good(kind: Kind, value: ValueRef<'_>, bytes: &[u8]) {
        assert_eq!(packed(kind, value), Ok((bytes.to_vec(), false)), "{kind:?} {value:?}");
    }

    #[test]
    fn values_are_encoded_unchanged() {
        good(Kind::Text, ValueRef::Null, b"\xff\xff\xff\xff");
        good(Kind::Text, ValueRef::Text("ä".as_bytes()), "\0\0\0\u{2}ä".as_bytes());
        good(Kind::Bytes, ValueRef::Text(b"a\0b"), b"\0\0\0\x03a\0b");
        good(Kind::Bytes, ValueRef::Blob(b""), b"\0\0\0\0");
        good(Kind::Small, ValueRef::Integer(-2), b"\0\0\0\x02\xff\xfe");
        good(Kind::Int, ValueRef::Integer(1), b"\0\0\0\x04\0\0\0\x01");
        good(Kind::Bits, ValueRef::Integer(u32::MAX.into()), b"\0\0\0\x04\xff\xff\xff\xff");
        good(Kind::Big, ValueRef::Integer(258), b"\0\0\0\x08\0\0\0\0\0\0\x01\x02");
        good(Kind::Flag, ValueRef::Integer(1), b"\0\0\0\x01\x01");
    }

    #[test]
    fn characters_that_postgresql_rejects_are_replaced() {
        for text in [&b"a\0b"[..], b"a\xffb"] {
            let replaced = (b"\0\0\0\x05a\xef\xbf\xbdb".to_vec(), true);
            assert_eq!(packed(Kind::Text, ValueRef::Text(text)), Ok(replaced));
        }
    }

    #[test]
    fn values_that_do_not_fit_are_errors() {
        assert_eq!(packed(Kind::Small, ValueRef::Integer(40_000)), Err("40000 does not fit".into()));
        assert!(packed(Kind::Id, ValueRef::Blob(b"short")).is_err());
        assert!(packed(Kind::Flag, ValueRef::Integer(2)).is_err());
    }
}
