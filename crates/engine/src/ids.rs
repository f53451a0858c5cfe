//! Maps keyed by ids. Ids end in random bytes, which serve as the hash.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Map keyed by ids that this server generated.
pub(crate) type ById<K, V> = HashMap<K, V, BuildHasherDefault<LastBytes>>;

/// Hasher that uses the last eight bytes.
#[derive(Default)]
pub(crate) struct LastBytes(u64);

impl Hasher for LastBytes {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk() {
            self.0 = u64::from_le_bytes(*last);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        // Hash tables use the lowest and the highest bits.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }
}
