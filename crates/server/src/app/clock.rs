//! The clock: its status, and its confirmation by an operator after a jump.

use redrive_core::Time;
use serde_json::json;

use super::{
    App, AppError,
    audit::{Actor, AuditChange, AuditedAction},
};

/// State of this node's clock.
#[derive(Clone, Copy, Debug)]
pub struct ClockStatus {
    /// Time used to schedule deliveries.
    pub now: Time,
    /// Time used to expire deliveries and to delete old data.
    pub confirmed_now: Time,
    /// Difference between the clock and its prediction in milliseconds, if there is one.
    pub unconfirmed_jump_ms: Option<i64>,
}

impl App {
    /// Returns the state of the clock.
    pub fn clock_status(&self) -> ClockStatus {
        let clock = self.engine.clock();
        ClockStatus {
            now: clock.now(),
            confirmed_now: clock.confirmed_now(),
            unconfirmed_jump_ms: clock.unconfirmed_jump_ms(),
        }
    }

    /// Confirms the current time of the clock for all nodes.
    pub async fn confirm_clock(&self, actor: &Actor) -> Result<ClockStatus, AppError> {
        let audited = AuditedAction { action: "clock.confirm", tenant: None, object: None };
        self.with_audit(actor, audited, async {
            let shown = |status: &ClockStatus| {
                Some(json!({
                    "now": status.now, "confirmed_now": status.confirmed_now,
                    "unconfirmed_jump_ms": status.unconfirmed_jump_ms,
                }))
            };
            let before = shown(&self.clock_status());
            self.engine.confirm_clock().await?;
            let status = self.clock_status();
            Ok((status, AuditChange { object: None, before, after: shown(&status) }))
        })
        .await
    }
}
