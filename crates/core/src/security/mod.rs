//! Rules against untrusted input and networks: addresses, egress rules, signatures, encryption, safe text.

pub mod address;
pub mod egress_rules;
pub mod file_access;
pub mod forwarded;
pub mod signature;
pub mod vault;
pub mod visible_text;
